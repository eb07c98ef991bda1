"""``echomq events``: what happens in queues."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import msgspec
import typer

from echomq import InvalidOption, QueueEvents
from echomq.cli import _text
from echomq.cli._shell import Shell, command
from echomq.events import Event, Gap, JobEvent

_ID: Final = re.compile(r"\d{1,20}-\d{1,20}")
_NO_EVENT: Final = (0, 0)
_SILENCE: Final = 2.0
"""Seconds after which what was to come is taken for gone: the log was cut off meanwhile."""


@command()
async def events(
    shell: Shell,
    queues: Annotated[list[str], typer.Argument(metavar="QUEUE", help="The queues' names.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens, until Ctrl-C.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="start, now, a time before now (10m), a moment, or an event's id, behind which to begin; left out, start, or "
            "with --follow now.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print what happens in queues, or what their logs hold of it.

    With --json one object a line. Exit code 3: without --follow, a queue is not there.
    """
    begin, first = ("now" if follow else "start", (0, 0)) if since is None else _begin(since)
    if follow:
        for name in queues:
            shell.note(await shell.is_its_name(shell.queue(name), "there is no such queue yet"))
        async with _listen(shell, queues, begin) as heard:
            async for event in heard:
                if _order(event.id) >= first:
                    _tell(shell, event)
    async with _listen(shell, queues, "now") as latest:
        ends = {queue: _order(position) for queue, position in latest.positions.items()}
    for name, end in ends.items():
        if end == _NO_EVENT:
            await shell.must_exist(shell.queue(name))
    async with _listen(shell, queues, begin) as heard:
        while any(_order(position) < ends[queue] for queue, position in heard.positions.items()):
            try:
                async with asyncio.timeout(_SILENCE):
                    event = await anext(heard)
            except TimeoutError:
                break
            if first <= _order(event.id) <= ends[event.queue]:
                _tell(shell, event)


def _listen(shell: Shell, queues: Sequence[str], since: str | Mapping[str, str]) -> QueueEvents:
    return QueueEvents(
        *dict.fromkeys(queues), connection=shell.connection, prefix=shell.prefix, hash_tag=shell.hash_tag, since=since
    )


def _begin(given: str) -> tuple[str, tuple[int, int]]:
    """Where to begin to read, and the first event to tell. A time need not be that of an event, so the whole log is read."""
    if given in ("start", "now") or _ID.fullmatch(given):
        return given, (0, 0)
    try:
        moment = datetime.now(UTC) - timedelta(seconds=_text.to_seconds(given))
    except (ValueError, OverflowError):
        try:
            moment = _text.to_moment(given)
        except ValueError:
            raise InvalidOption(
                f"--since {given}: must be start, now, a time before now such as 10m, a moment such as 2026-12-01T09:30, "
                "or the id of an event"
            ) from None
    return "start", (int(moment.timestamp() * 1000), 0)


def _order(event_id: str) -> tuple[int, int]:
    first, _, second = event_id.partition("-")
    return int(first), int(second or 0)


def _tell(shell: Shell, event: Event) -> None:
    fields = msgspec.structs.asdict(event)
    about = {name: fields.pop(name) for name in ("queue", "id", "at")}
    kind = event.kind or type(event).__name__.lower()
    if shell.as_json:
        shell.print_json({"event": kind, **about, **fields})
        return
    job_id = fields.pop("job_id") if isinstance(event, JobEvent) else ""
    if isinstance(event, Gap):
        fields = {"events may be missing here, until": event.until or "now"}
    told = "  ".join(f"{name}: {_value(value)}" for name, value in fields.items() if value is not None)
    when = event.at.astimezone()
    typer.echo(
        f"{when:%Y-%m-%d %H:%M:%S}.{when.microsecond // 1000:03d}  {_text.harmless(event.queue)}  {kind:<16}  "
        f"{_text.harmless(job_id)}  {told}".rstrip()
    )


def _value(value: Any) -> str:
    return _text.one_line(value if isinstance(value, str) else _text.to_json(value), 120)
