"""``echomq outbox``: sends what a transactional outbox holds, and looks at it."""

from __future__ import annotations

import asyncio
import functools
import importlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NoReturn

import typer

from echomq import EchoMQError
from echomq.cli import _text
from echomq.cli._logs import LogFormat, log_to_stderr
from echomq.cli._loop import run_in_loop
from echomq.cli._shell import MISUSE, REFUSED
from echomq.outbox import Outbox, OutboxRow, Relay

app: typer.Typer = typer.Typer(
    name="outbox", no_args_is_help=True, help="Send what a transactional outbox holds; look at it."
)

Target = Annotated[str, typer.Argument(metavar="TARGET", help="Where the Relay is: package.module:name.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Ids = Annotated[list[int] | None, typer.Argument(metavar="ID", help="Numbers of rows, as list shows them.")]


@app.command()
def relay(
    target: Target,
    until_empty: Annotated[bool, typer.Option("--until-empty", help="Stop when nothing is left.")] = False,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
    log_format: Annotated[LogFormat, typer.Option(help="As text, or one JSON object a line.")] = LogFormat.text,
) -> None:
    """Send what is committed, until SIGTERM or SIGINT (Ctrl-C). Several share the work.

    Then the batch under way is ended first. With --until-empty it fails at the first error, instead of waiting.
    """
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        _refuse(f"--log-level {log_level}: must be debug, info, warning or error")
    log_to_stderr(level, log_format)
    _run(target, functools.partial(send, until_empty=until_empty))


async def send(relay: Relay, *, until_empty: bool) -> None:
    """Runs a relay until a signal comes."""
    loop = asyncio.get_running_loop()
    running = asyncio.current_task()
    assert running is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    log = logging.getLogger("echomq")
    log.info("relay of %s works", relay.outbox.table)
    try:
        if until_empty:
            log.info("relay of %s: %d sent", relay.outbox.table, await relay.run_until_empty())
        else:
            await relay.run()
    except asyncio.CancelledError:  # the signal; what was under way has been ended
        running.uncancel()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    log.info("relay of %s has stopped", relay.outbox.table)


@app.command()
def status(target: Target, as_json: Json = False) -> None:
    """Say how many rows wait, since when, and how many were set aside."""

    async def look(relay: Relay) -> None:
        found = await relay.outbox.status()
        age = "" if found.oldest is None else f", the oldest for {_text.duration(found.oldest)}"
        typer.echo(_text.to_json(found) if as_json else f"{found.waiting} waiting{age}; {found.set_aside} set aside")

    _run(target, look)


@app.command("list")
def list_rows(
    target: Target,
    limit: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="At most so many.")] = 100,
    as_json: Json = False,
) -> None:
    """List the rows that were set aside, each with the reason."""

    async def look(relay: Relay) -> None:
        rows = await relay.outbox.set_aside(limit)
        if as_json:
            typer.echo(_text.to_json({"rows": rows}))
            return
        for line in _text.table(["ID", "QUEUE", "JOB", "WRITTEN", "REASON"], [_line(row) for row in rows], right=(0,)):
            typer.echo(line)

    _run(target, look)


def _line(row: OutboxRow) -> list[str]:
    return [
        str(row.id),
        _text.one_line(row.queue, 40),
        _text.one_line(row.job_id, 40),
        _text.age(row.created_at),
        _text.one_line(row.reason, 200),
    ]


@app.command()
def retry(target: Target, ids: Ids = None, as_json: Json = False) -> None:
    """Let rows that were set aside be sent again: these, or all."""
    _change(target, as_json, "retried", lambda outbox: outbox.retry(*(ids or ())))


@app.command()
def discard(
    target: Target,
    ids: Annotated[list[int], typer.Argument(metavar="ID", help="Numbers of rows, as list shows them.")],
    as_json: Json = False,
) -> None:
    """Delete rows that were set aside: their jobs are never sent."""
    _change(target, as_json, "discarded", lambda outbox: outbox.discard(*ids))


def _change(target: str, as_json: bool, verb: str, change: Callable[[Outbox], Awaitable[int]]) -> None:
    async def do(relay: Relay) -> None:
        number = await change(relay.outbox)
        typer.echo(_text.to_json({verb: number}) if as_json else f"{number} {verb}")

    _run(target, do)


def _run(target: str, work: Callable[[Relay], Awaitable[None]]) -> None:
    relay = _load(target)

    async def whole() -> None:
        try:
            await work(relay)
        finally:
            await relay.outbox.close()
            await relay.app.close()

    try:
        run_in_loop(whole())
    except EchoMQError as error:
        _fail(str(error), MISUSE if isinstance(error, ValueError) else REFUSED)
    except Exception as error:  # whatever the database's driver raises: it is no fault of this program
        _fail("; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]), REFUSED)


def _load(target: str) -> Relay:
    name, _, attribute = target.partition(":")
    if not name or not attribute:
        _refuse(f"{target!r}: must be package.module:name, such as shop:relay")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        if error.name != name and not name.startswith(f"{error.name}."):
            raise
        _refuse(f"{target!r}: there is no module {error.name!r} in {os.getcwd()} or on Python's path")
    except AttributeError as error:
        _refuse(f"{target!r}: {error}")
    if not isinstance(found, Relay):
        _refuse(f"{target!r}: must name an echomq.outbox.Relay, and is of type {type(found).__name__}")
    return found


def _refuse(message: str) -> NoReturn:
    _fail(message, MISUSE)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"echomq outbox: {' '.join(_text.harmless(message).split())}", err=True)
    raise typer.Exit(code)
