"""A worker of ours in a process of its own, to be killed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.node_peer import News
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[2]


class OurProcess:
    """One process of ``our_worker``.

    Attributes:
        news: what it told, oldest first; ``at`` says when.
    """

    def __init__(self, url: str, queue: str, prefix: str, database: str = "", **options: Any) -> None:
        self.news: list[News] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.interop.our_worker", url, queue, prefix, database, json.dumps(options)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    async def ready(self) -> Self:
        """Waits until it would take a job."""
        await self.tells("ready")
        return self

    def told(self, news: str, **fields: Any) -> list[News]:
        """The news of this kind whose fields have these values, oldest first."""
        wanted = {"news": news, **fields}
        return [told for told in list(self.news) if wanted.items() <= told.items()]

    async def tells(self, news: str, *, times: int = 1, **fields: Any) -> list[News]:
        """Waits until it told so, so many times."""
        await wait_until(lambda: len(self.told(news, **fields)) >= times, 15, f"{news} {fields} from our process")
        return self.told(news, **fields)

    def kill(self) -> None:
        """SIGKILL, and wait for its end. All that it told before is in ``news`` then."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):
                self.news.append({**json.loads(line), "at": time.monotonic()})
