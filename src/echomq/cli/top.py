"""``echomq top``: queues and workers, live."""

from __future__ import annotations

import asyncio
import contextlib
import io
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from echomq import EchoMQError
from echomq.cli._shell import Shell, command, misuse, seconds_option
from echomq.cli._top.frame import View, draw
from echomq.cli._top.screen import Screen
from echomq.cli._top.watch import Seen, Spread, Watch

if TYPE_CHECKING:
    from rich.text import Text

_FIND_EVERY: Final = 15.0
_FIND_SHARE: Final = 20
"""To find the queues means to walk over all keys of the server: of that, a twentieth of the time at most."""
_REDRAW_EVERY: Final = 1.0
_LOOK_FOR_FIRST: Final = 0.1
"""Seconds between two questions whether a queue has been found."""
_WIDTH: Final = 160
"""Columns of a frame that no terminal shows."""


@command(patience=0.0, is_timed=False)
async def top(
    shell: Shell,
    queues: Annotated[
        list[str] | None, typer.Argument(metavar="QUEUE", help="Only these queues; left out, all of the prefix.")
    ] = None,
    interval: Annotated[float, seconds_option("--interval", help="Time between two looks; left out, 2 s.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end. So does --json.")] = False,
) -> None:
    """Show queues and workers, live, on the whole terminal.

    IN and OUT are jobs a second over the last 10 s: what ended, and that plus what the backlog grew by. OLDEST is for how long
    the job could have run that is next. WAITED and RAN are the middle and the 95 % of up to 50 jobs that completed in the last
    5 minutes. Exit code 3: with --once or --json, a queue is not there.
    """
    if not 0.1 <= interval <= 3600:
        misuse(f"--interval {interval:g}: must be from 0.1 s to 1 h")
    is_one = once or shell.as_json
    if is_one and shell.timeout is not None and shell.timeout <= interval:
        misuse(
            f"--timeout {shell.timeout:g}: one frame takes two looks, {interval:g} s apart; give it more time, or a shorter "
            "--interval"
        )
    watch = Watch(shell.open_queue, None if queues else shell.names, queues or ())
    view = View(f"{shell.connection.where}, prefix {shell.prefix}")
    if not (is_one or (sys.stdin.isatty() and sys.stdout.isatty())):
        misuse("it draws on a terminal, and this is none: --once prints one frame, --json one object")
    try:
        if is_one:
            await _once(shell, watch, view, interval, queues or ())
        else:
            await _Live(watch, view, interval).run()
    finally:
        await watch.close()


async def _once(shell: Shell, watch: Watch, view: View, interval: float, queues: Sequence[str]) -> None:
    async with shell.in_time():
        await watch.find()
        await watch.look(everything=True)
        for name in queues:
            if not watch.seen[name].workers and watch.seen[name].trouble is None:
                await shell.must_exist(watch.queue(name))
        await asyncio.sleep(interval)
        await watch.look(everything=True)
    if shell.as_json:
        shell.print_json(_record(watch, view, shell))
        return
    width = shutil.get_terminal_size((_WIDTH, 50)).columns
    console = Console(width=width, highlight=False, emoji=False, markup=False)
    for line in draw(view, watch, width, None):
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True)


def _record(watch: Watch, view: View, shell: Shell) -> dict[str, Any]:
    return {
        "at": watch.at,
        "server": shell.connection.where,
        "prefix": shell.prefix,
        "queues": [_queue_record(one) for one in view.order(watch)],
    }


def _queue_record(seen: Seen) -> dict[str, Any]:
    oldest = None
    if seen.oldest is not None and seen.waiting():
        oldest = max((datetime.now(UTC) - seen.oldest).total_seconds(), 0.0)
    return {
        "queue": seen.queue,
        "counts": seen.counts,
        "paused": seen.paused,
        "in_per_second": seen.incoming,
        "out_per_second": seen.outgoing,
        "oldest_waiting_age": oldest,
        "waited": _spread_record(seen.wait),
        "ran": _spread_record(seen.run),
        "sampled": seen.sampled,
        "concurrency": seen.concurrency,
        "rate_limited_for": seen.limited_for,
        "workers": [] if seen.workers is None else seen.workers,
        "trouble": seen.trouble,
    }


def _spread_record(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else {"p50": spread.p50, "p95": spread.p95}


class _Live:
    """The view on the whole terminal. Looking and drawing go their own ways, so that keys act at once, server or not."""

    def __init__(self, watch: Watch, view: View, interval: float) -> None:
        self._watch = watch
        self._view = view
        self._interval = interval
        self._changed = asyncio.Event()
        self._typing: str | None = None
        self._asked: tuple[str, bool] | None = None
        self._code: int | None = None
        self._acting: set[asyncio.Task[None]] = set()
        self._terminal = Console()

    async def run(self) -> None:
        """Until q, Ctrl-C or a signal."""
        with Screen(self._key, self._changed.set, self._signal) as screen:
            work = [asyncio.create_task(self._find()), asyncio.create_task(self._look())]
            try:
                while self._code is None:
                    self._changed.clear()
                    columns, height = screen.size
                    screen.draw(self._render(draw(self._view, self._watch, columns, height), columns))
                    for task in work:
                        if task.done():
                            task.result()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_REDRAW_EVERY):
                            await self._changed.wait()
            finally:
                for task in (*work, *self._acting):
                    task.cancel()
                await asyncio.gather(*work, *self._acting, return_exceptions=True)
        raise typer.Exit(self._code)

    def _render(self, lines: Sequence[Text], width: int) -> list[str]:
        """As text with the colours of this terminal."""
        console = Console(
            file=io.StringIO(),
            force_terminal=True,
            color_system=self._terminal.color_system,  # type: ignore[arg-type]
            no_color=self._terminal.no_color,
            width=width,
            highlight=False,
            legacy_windows=False,
        )
        out = []
        for line in lines:
            with console.capture() as captured:
                console.print(line, end="", no_wrap=True, overflow="ellipsis", crop=True)
            out.append(captured.get())
        return out

    async def _find(self) -> None:
        while True:
            begun = time.monotonic()
            try:
                await self._watch.find()
            except EchoMQError as error:
                self._away(error)
            else:
                if not self._watch.seen:
                    self._watch.away = None
            self._changed.set()
            took = time.monotonic() - begun
            await asyncio.sleep(max(_FIND_EVERY, took * _FIND_SHARE) if self._watch.seen else self._interval)

    async def _look(self) -> None:
        while True:
            if self._watch.seen:
                selected = [] if self._view.selected is None else [self._view.selected]
                try:
                    await self._watch.look([*selected, *self._view.on_screen])
                except EchoMQError as error:
                    self._away(error)
                else:
                    self._watch.away = None
                self._changed.set()
                await asyncio.sleep(self._interval)
            else:
                await asyncio.sleep(min(self._interval, _LOOK_FOR_FIRST))

    def _away(self, error: EchoMQError) -> None:
        since = datetime.now(UTC) if self._watch.away is None else self._watch.away[0]
        self._watch.away = (since, str(error))

    # -- keys ----------------------------------------------------------------------------------------------------------

    def _signal(self, number: int) -> None:
        self._code = 128 + number
        self._changed.set()

    def _key(self, key: str) -> None:
        self._changed.set()
        if self._typing is not None:
            self._type(key)
        elif self._asked is not None:
            self._answer(key)
        else:
            self._view.prompt = None
            self._command(key)

    def _command(self, key: str) -> None:
        view = self._view
        match key:
            case "q":
                self._code = 0
            case "s":
                view.next_sort()
            case "r":
                view.reverse = not view.reverse
            case "/":
                self._typing, view.prompt = view.filter, f"filter: {view.filter}"
            case "escape":
                view.filter = ""
            case "up" | "k":
                view.select(self._watch, -1)
            case "down" | "j":
                view.select(self._watch, 1)
            case "page up":
                view.select(self._watch, -max(len(view.on_screen) - 1, 1))
            case "page down":
                view.select(self._watch, max(len(view.on_screen) - 1, 1))
            case "p" if view.selected in self._watch.seen:
                name = str(view.selected)
                paused = self._watch.seen[name].paused
                self._asked = (name, not paused)
                view.prompt = f"{'resume' if paused else 'pause'} {name} for all its workers? y/n"

    def _type(self, key: str) -> None:
        assert self._typing is not None
        if key in ("enter", "escape"):
            self._view.filter = self._typing if key == "enter" else ""
            self._typing = self._view.prompt = None
            return
        if key == "backspace":
            self._typing = self._typing[:-1]
        elif len(key) == 1 and key.isprintable():
            self._typing += key
        self._view.filter = self._typing
        self._view.prompt = f"filter: {self._typing}"

    def _answer(self, key: str) -> None:
        assert self._asked is not None
        (name, pause), self._asked, self._view.prompt = self._asked, None, None
        if key == "y":
            task = asyncio.create_task(self._pause(name, pause))
            self._acting.add(task)
            task.add_done_callback(self._acting.discard)

    async def _pause(self, name: str, pause: bool) -> None:
        queue = self._watch.queue(name)
        try:
            await (queue.pause() if pause else queue.resume())
            self._view.prompt = f"{name}: {'paused' if pause else 'resumed'}"
            if name in self._watch.seen:
                self._watch.seen[name].paused = pause
        except EchoMQError as error:
            self._view.prompt = f"{name}: {error}"
        self._changed.set()
