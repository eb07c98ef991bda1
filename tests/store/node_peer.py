"""Node's BullMQ as a peer on the same server, with its clock held still: see node_peer.mjs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

HERE = Path(__file__).parent
MODULES = HERE.parent / "interop" / "node"

Version = Literal["bullmq5", "bullmq6"]


class NodeError(Exception):
    """What an operation threw.

    Attributes:
        code: its ``code``, if it has one (a negative number of protocol 6.4).
    """

    def __init__(self, message: str, code: int | str | None) -> None:
        super().__init__(message)
        self.code = code


class NodePeer:
    """One Node process with one BullMQ version; ``open`` it for a server and a queue, ``close`` it after each test."""

    def __init__(self, version: Version) -> None:
        node = shutil.which("node")
        assert node is not None, "no node on PATH: install it (Debian: apt-get install nodejs npm)"
        assert (MODULES / "node_modules" / version).is_dir(), f"run `npm ci --ignore-scripts` in {MODULES}"
        self.version = version
        self._process = subprocess.Popen(
            [node, str(HERE / "node_peer.mjs"), str(MODULES), version],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, op: str, **given: Any) -> Any:
        """Carry out an operation and give its answer.

        Raises:
            NodeError: it threw.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **given}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the Node process has ended with code {self._process.wait()}"
        answer = json.loads(line)
        if "error" in answer:
            raise NodeError(answer["error"], answer["code"])
        return answer["ok"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
