"""The terminal while a full-screen view has it, and what puts it back as it was."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""The other screen, no cursor, long lines are cut."""
_LEAVE: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"

_KEY: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)
_NAMED: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
}


class Screen:
    """The whole terminal, from ``with`` to its end, however that comes.

    Args:
        on_key: called with each key: a character, or a name such as ``up``.
        on_resize: called when the terminal has another size.
        on_signal: called with a signal that wants the program to end (SIGTERM, SIGHUP).
    """

    def __init__(
        self, on_key: Callable[[str], None], on_resize: Callable[[], None], on_signal: Callable[[int], None]
    ) -> None:
        self._in = sys.stdin.fileno()
        self._on_key = on_key
        self._on_resize = on_resize
        self._on_signal = on_signal
        self._shown: list[str] = []
        self._before: list[Any] = []
        self._suspend: Any = None

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._in)
        try:
            tty.setcbreak(self._in)
            # Ctrl-Z would leave this screen to the shell.
            self._suspend = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
            loop = asyncio.get_running_loop()
            loop.add_reader(self._in, self._read)
            loop.add_signal_handler(signal.SIGWINCH, self._resized)
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self._on_signal, number)
            self._write(_ENTER)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
        return max(columns, 1), max(lines, 1)

    def draw(self, lines: Sequence[str]) -> None:
        """Shows these lines, from the top. Only those that differ are written."""
        parts = []
        for at, line in enumerate(lines):
            if at >= len(self._shown) or self._shown[at] != line:
                parts.append(f"\x1b[{at + 1};1H{line}\x1b[0m\x1b[K")
        if len(lines) < len(self._shown):
            parts.append(f"\x1b[{len(lines) + 1};1H\x1b[J")
        self._shown = list(lines)
        if parts:
            self._write("".join(parts))

    def _restore(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._in)
        for number in (signal.SIGWINCH, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        if self._suspend is not None:
            signal.signal(signal.SIGTSTP, self._suspend)
        try:
            self._write(_LEAVE)
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._before)
        except OSError:
            pass  # the terminal has gone

    def _resized(self) -> None:
        self._shown = []
        self._write("\x1b[2J")
        self._on_resize()

    def _read(self) -> None:
        try:
            read = os.read(self._in, 1024)
        except OSError:
            read = b""
        if not read:  # the terminal has gone
            asyncio.get_running_loop().remove_reader(self._in)
            self._on_signal(signal.SIGHUP)
            return
        for key in _KEY.findall(read.decode("utf-8", "replace")):  # several, where one is held down
            self._on_key(_NAMED.get(key, key))

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
