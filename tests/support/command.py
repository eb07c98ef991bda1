"""The command line as a user has it: a process of its own, with or without a terminal."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.support.wait import wait_until

PROGRAM = [sys.executable, "-m", "echomq.cli"]


@dataclass(frozen=True)
class Ran:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object that it printed."""
        assert self.code == 0, self.err
        [line] = self.out.splitlines()
        return json.loads(line)


async def echomq(
    *words: str, url: str | None = None, given: str = "", env: Mapping[str, str] | None = None, timeout: float = 30
) -> Ran:
    """Runs a command to its end, without a terminal."""
    process = await asyncio.create_subprocess_exec(
        *PROGRAM,
        *words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(url, env),
    )
    try:
        async with asyncio.timeout(timeout):
            out, err = await process.communicate(given.encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())


def environment(url: str | None, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """That of this process, with this server as the one to use."""
    env = {
        name: value for name, value in os.environ.items() if name not in ("ECHOMQ_URL", "NO_COLOR", "COLUMNS", "LINES")
    }
    return {**env, "TERM": "xterm-256color", **({} if url is None else {"ECHOMQ_URL": url}), **(more or {})}


class Terminal:
    """A command that has a terminal, of which it is the only program.

    Attributes:
        process: the command.
        text: all that it has written so far.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        url: str | None = None,
        size: tuple[int, int] = (120, 30),
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self._ours, self._theirs = pty.openpty()
        self.resize(*size)
        self.before: list[Any] = termios.tcgetattr(self._theirs)
        self.text: str = ""
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [*program, *words],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env=environment(url),
            start_new_session=True,
        )
        os.set_blocking(self._ours, False)

    async def __aenter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self._ours, self._read)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)
        os.close(self._theirs)

    @property
    def now(self) -> list[Any]:
        """The terminal's settings."""
        return termios.tcgetattr(self._theirs)

    def resize(self, columns: int, lines: int) -> None:
        """Gives the terminal another size. Its program has to be told by a signal, as it has no window."""
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, text: str) -> None:
        """Presses keys."""
        os.write(self._ours, text.encode())

    async def says(self, text: str, timeout: float = 20) -> None:
        """Waits until the program has written this, and forgets everything up to there."""
        await wait_until(
            lambda: text in self.text or self.process.poll() is not None, timeout, f"{text!r} in {self.text[-2000:]!r}"
        )
        await asyncio.sleep(0)
        self._read()
        assert text in self.text, self.text[-3000:]
        self.text = self.text.partition(text)[2]

    async def end(self, timeout: float = 20) -> int:
        """The exit code."""
        await wait_until(lambda: self.process.poll() is not None, timeout, f"its end, after {self.text[-2000:]!r}")
        self._read()
        assert self.process.returncode is not None
        return self.process.returncode

    def _read(self) -> None:
        try:
            while read := os.read(self._ours, 65536):
                self.text += read.decode("utf-8", "replace")
        except OSError:
            pass  # nothing more at the moment
