"""``echomq doctor``: what is not as it should be on a server and in its queues, and its repair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated

import typer

from echomq import EchoMQError
from echomq.cli import _text
from echomq.cli._shell import REFUSED, Shell, command, misuse, seconds_option
from echomq.doctor import KINDS, Doctor, Finding, QueueFacts, Report

_SHOWN = 10
_REPAIRED = sorted(kind for kind, about in KINDS.items() if about.fixable)
_COLOURS = {"error": typer.colors.RED, "warning": typer.colors.YELLOW}


@command()
async def doctor(
    shell: Shell,
    queues: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE", help="Only these queues, with their dead letters; left out, all of the prefix."
        ),
    ] = None,
    fix: Annotated[
        list[str] | None, typer.Option("--fix", metavar="KIND", help="Repair findings of this kind; may be said again.")
    ] = None,
    fix_all: Annotated[bool, typer.Option("--fix-all", help="Repair all that can be repaired.")] = False,
    oldest_waiting: Annotated[
        float | None, seconds_option("--oldest-waiting", help="A job that waits longer is a finding: 90, 10m, 2h.")
    ] = None,
) -> None:
    """Find what is not as it should be, and repair it.

    It looks at the server and its queues. It repairs what --fix names, and looks again before it does. It reads in small steps
    while the queues go on. Of each kind and queue the first 10 findings are shown; --json has all.
    Exit code 0: nothing was found, or nothing is left. 1: something was. 2: misuse. 3: there is no
    such queue.
    """
    _check(fix or [])
    here = Doctor(shell.connection, prefix=shell.prefix, hash_tag=shell.hash_tag)

    async def examine() -> Report:
        with shell.progress("looked at") as done:
            return await here.examine(*queues or (), oldest_waiting=oldest_waiting, on_progress=done)

    report = await examine()
    for name in queues or ():
        _must_be_there(shell, name, report)
    wanted = [one for one in report.findings if one.fixable and (fix_all or one.kind in (fix or []))]
    repaired: list[Finding] = []
    failed: list[str] = []
    for one in wanted:
        try:
            if await here.fix(one):
                repaired.append(one)
        except EchoMQError as error:
            failed.append(f"{one.kind}: {one.text}: not repaired: {error}")
    if wanted:
        report = await examine()
    record = {
        "healthy": report.healthy, "findings": report.findings, "repaired": repaired, "not_repaired": failed,
        "not_looked_at": report.not_looked_at, "server": report.server, "queues": report.queues,
    }  # fmt: skip
    shell.answer(record, _lines(report, repaired, failed))
    if not report.healthy:
        raise typer.Exit(REFUSED)


def _must_be_there(shell: Shell, name: str, report: Report) -> None:
    """What was asked for by a wrong name is not well. A queue that is damaged may have nothing but findings."""
    seen = {facts.queue for facts in report.queues} | {one.queue for one in report.findings}
    if name not in seen and not report.not_looked_at:
        raise shell.no_queue(name)


def _check(kinds: list[str]) -> None:
    for kind in kinds:
        if kind not in KINDS:
            misuse(f"--fix {kind}: there is no such kind; what can be repaired: {', '.join(_REPAIRED)}")
        if not KINDS[kind].fixable:
            misuse(f"--fix {kind}: nothing repairs that by itself: {KINDS[kind].remedy}")


def _lines(report: Report, repaired: list[Finding], failed: list[str]) -> Iterator[str]:
    server = report.server
    size = "" if server.used_memory is None else f", {_size(server.used_memory)} used"
    yield f"{server.product or 'server'}{size}"
    yield from map(_of_queue, report.queues)
    for kind, number in Counter(one.kind for one in repaired).items():
        yield typer.style(f"repaired  {kind}: {number:,}", fg=typer.colors.GREEN)
    for text in failed:
        yield typer.style(_text.harmless(text), fg=typer.colors.RED)
    told: Counter[tuple[str, str]] = Counter()
    for one in report.findings:
        told[one.kind, one.queue] += 1
        if told[one.kind, one.queue] <= _SHOWN:
            where = f"{one.queue}: " if one.queue else ""
            yield f"{typer.style(f'{one.severity:<8}', fg=_COLOURS[one.severity])}  {_text.harmless(where + one.text)}"
            yield f"          {one.kind}: {one.remedy}" + (f" (--fix {one.kind})" if one.fixable else "")
    for (kind, name), number in told.items():
        if number > _SHOWN:
            yield f"{'':10}{name}: {number - _SHOWN:,} more of {kind}"
    for text in report.not_looked_at:
        yield f"could not be looked at: {_text.harmless(text)}"
    yield "nothing was found" if report.healthy else f"{len(report.findings):,} found"


def _of_queue(facts: QueueFacts) -> str:
    counts = ", ".join(f"{number:,} {state}" for state, number in facts.counts.items() if number) or "no jobs"
    parts = [counts]
    if facts.paused:
        parts.append("paused")
    if facts.workers is not None:
        parts.append("1 worker" if facts.workers == 1 else f"{facts.workers:,} workers")
    if facts.oldest_waiting_age is not None:
        parts.append(f"the oldest waits for {_text.duration(facts.oldest_waiting_age)}")
    if facts.memory is not None:
        parts.append(f"some {_size(facts.memory)}")
    return _text.harmless(f"{facts.queue}: {'; '.join(parts)}")


def _size(number: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}"
        number //= 1024
    return f"{number:,} GiB"
