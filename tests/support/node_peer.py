"""BullMQ as a peer: a process that does what a test asks for, with a version for Node (interop/node/peer.mjs), or for Python."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, get_args

from tests.support.wait import wait_until

Version: TypeAlias = Literal["bullmq5", "bullmq6"]
VERSIONS: Final[tuple[Version, ...]] = get_args(Version)

FOLDER: Final = Path(__file__).parents[1] / "interop" / "node"
PYTHON_FOLDER: Final = FOLDER.parent / "python"
ANSWER_TIMEOUT: Final = 30.0


class Undefined:
    """JavaScript's ``undefined``, where Node answers with it."""

    def __repr__(self) -> str:
        return "UNDEFINED"


UNDEFINED: Final = Undefined()


class NodeError(Exception):
    """What a command threw over there.

    Attributes:
        name: the class of the error.
        code: its ``code``, if it has one.
    """

    def __init__(self, name: str, message: str, code: int | str | None) -> None:
        super().__init__(message)
        self.name = name
        self.code = code


class NodeDied(Exception):
    """The process ended before it answered."""


News: TypeAlias = dict[str, Any]


class Peer:
    """One process that speaks the language of peer.mjs.

    Args:
        label: what it is called in messages.
        command: what starts it.
        on_news: called for each of the news, in a thread of its own.

    Attributes:
        news: what it told without being asked, oldest first: starts and ends of handlers, events, errors; ``at`` says when.
    """

    def __init__(self, label: str, command: Sequence[str], on_news: Callable[[Any, News], None] | None = None) -> None:
        self.label = label
        self.news: list[News] = []
        self._on_news = on_news
        self._number = 0
        self._asked: dict[int, Future[Any]] = {}
        self._mutex = threading.Lock()
        self._process = subprocess.Popen(  # it ends when its standard input does: with the tests, however they end
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._reader = threading.Thread(target=self._read, name=f"reads {label}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self._process.poll() is None

    def queue(self, name: str, *, prefix: str = "bull") -> NodeQueue:
        """Its view of a queue, by the name that Node uses."""
        return NodeQueue(self, name, prefix)

    async def __call__(self, op: str, **given: Any) -> Any:
        """Carries out a command and gives its answer.

        Raises:
            NodeError: it threw.
            NodeDied: the process ended first.
        """
        async with asyncio.timeout(ANSWER_TIMEOUT):
            return await asyncio.wrap_future(self.send(op, **given))

    def send(self, op: str, **given: Any) -> Future[Any]:
        """Sends a command; its answer comes with the future."""
        future: Future[Any] = Future()
        assert self._process.stdin is not None
        with self._mutex:
            self._number += 1
            self._asked[self._number] = future
            try:
                self._process.stdin.write(json.dumps({"n": self._number, "op": op, **given}) + "\n")
                self._process.stdin.flush()
            except (OSError, ValueError):  # its end of the pipe, or ours, is closed
                del self._asked[self._number]
                future.set_exception(NodeDied(f"{self.label} has ended"))
        return future

    def told(self, news: str, **fields: Any) -> list[News]:
        """The news of this kind whose fields have these values, oldest first."""
        wanted = {"news": news, **fields}
        return [told for told in list(self.news) if wanted.items() <= told.items()]

    async def tells(self, news: str, *, times: int = 1, timeout: float = 15, **fields: Any) -> list[News]:
        """Waits until it told so, so many times."""
        await wait_until(lambda: len(self.told(news, **fields)) >= times, timeout, f"{news} {fields} from {self.label}")
        return self.told(news, **fields)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def close(self) -> None:
        """Ends it in an orderly way."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass  # it was killed with something unsent
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                told = json.loads(line)
            except ValueError:
                continue  # cut by a kill
            if "news" in told:
                self.news.append({**told, "at": time.monotonic()})
                if self._on_news is not None:
                    self._on_news(self, told)
                continue
            with self._mutex:
                future = self._asked.pop(told["n"])
            if not future.set_running_or_notify_cancel():
                continue
            if "error" in told:
                error = told["error"]
                future.set_exception(NodeError(error["name"], error["message"], error.get("code")))
            else:
                future.set_result(told.get("ok", UNDEFINED))
        with self._mutex:
            left = list(self._asked.values())
            self._asked.clear()
        for future in left:
            if future.set_running_or_notify_cancel():
                future.set_exception(NodeDied(f"{self.label} ended before it answered"))


class NodePeer(Peer):
    """One Node process.

    Args:
        version: which BullMQ.
        socket: the unix socket of the server.
        clock_ahead: by how many seconds its clock is ahead of ours.
        on_news: called for each of the news, in a thread of its own.
    """

    def __init__(
        self,
        version: Version,
        socket: Path,
        *,
        clock_ahead: float = 0.0,
        on_news: Callable[[NodePeer, News], None] | None = None,
    ) -> None:
        node = shutil.which("node")
        assert node is not None, "no node on PATH: install it (Debian: apt-get install nodejs npm)"
        assert (FOLDER / "node_modules" / version).is_dir(), f"run `npm ci --ignore-scripts` in {FOLDER}"
        self.version = version
        super().__init__(
            version,
            [node, str(FOLDER / "peer.mjs"), version, str(socket), str(round(clock_ahead * 1000) or "")],
            on_news,
        )


class PythonPeer(Peer):
    """One process with BullMQ for Python, which knows a part of the language: add, pause, resume, isPaused, work, reset."""

    def __init__(self, url: str) -> None:
        python = PYTHON_FOLDER / ".venv" / "bin" / "python"
        assert python.exists(), f"no {python}: `make test` makes it"
        super().__init__("bullmq for Python", [str(python), str(PYTHON_FOLDER / "peer.py"), url])


@dataclass
class NodeQueue:
    """A queue as Node sees it. Option and state names are Node's, durations milliseconds where Node has them so."""

    node: Peer
    name: str
    prefix: str
    _workers: int = field(default=0, init=False)

    async def _do(self, op: str, **given: Any) -> Any:
        return await self.node(op, queue=self.name, prefix=self.prefix, **given)

    async def add(self, name: str, data: Any = UNDEFINED, **opts: Any) -> str:
        """Adds a job and gives its id."""
        given = {} if data is UNDEFINED else {"data": data}
        return str((await self._do("add", name=name, opts=opts, **given))["id"])

    async def add_bulk(self, jobs: Sequence[Mapping[str, Any]]) -> list[str]:
        """Adds jobs, each with ``name, data, opts``."""
        return list(await self._do("addBulk", jobs=list(jobs)))

    async def flow(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Adds a tree of jobs; gives their ids in the same shape."""
        return dict(await self._do("flow", tree=tree))

    async def schedule(self, id: str, repeat: Mapping[str, Any], template: Mapping[str, Any]) -> str:
        """Upserts a job scheduler; gives the id of its next job."""
        return str((await self._do("schedule", id=id, repeat=repeat, template=template))["id"])

    async def schedulers(self) -> list[dict[str, Any]]:
        return list(await self._do("schedulers"))

    async def unschedule(self, id: str) -> bool:
        return bool(await self._do("unschedule", id=id))

    async def pause(self) -> None:
        await self._do("pause")

    async def resume(self) -> None:
        await self._do("resume")

    async def is_paused(self) -> bool:
        return bool(await self._do("isPaused"))

    async def counts(self) -> dict[str, int]:
        """``getJobCounts()``, the states without a job left out."""
        return {state: count for state, count in (await self._do("counts")).items() if count}

    async def workers(self) -> list[dict[str, str]]:
        return list(await self._do("workers"))

    async def jobs(self, *states: str, asc: bool = False) -> list[dict[str, Any]]:
        return list(await self._do("jobs", states=states, asc=asc))

    async def completed(self) -> list[dict[str, Any]]:
        return list(await self._do("completed"))

    async def failed(self) -> list[dict[str, Any]]:
        return list(await self._do("failed"))

    async def job(self, id: str) -> dict[str, Any]:
        """The job as its ``toJSON`` shows it, with ``state``; fails if there is none."""
        found = await self._do("job", id=id)
        assert found is not None, f"Node finds no job {id}"
        return dict(found)

    async def has(self, id: str) -> bool:
        return await self._do("job", id=id) is not None

    async def state(self, id: str) -> str:
        return str((await self.job(id))["state"])

    async def call(self, method: str, *args: Any) -> Any:
        """Any other method of Node's queue."""
        return await self._do("call", method=method, args=args)

    async def call_job(self, id: str, method: str, *args: Any) -> None:
        """Any other method of Node's job."""
        await self._do("callJob", id=id, method=method, args=args)

    async def retry(self, id: str, state: str = "failed") -> None:
        await self._do("retry", id=id, state=state)

    async def remove(self, id: str) -> None:
        await self._do("remove", id=id)

    async def dependencies(self, id: str) -> dict[str, Any]:
        return dict(await self._do("dependencies", id=id))

    async def listen(self, *custom: str) -> None:
        """Opens a QueueEvents; its events, and those of one's own of these names, are news of the kind ``event``."""
        await self._do("listen", custom=custom)

    async def publish(self, event: str, **fields: Any) -> None:
        """Writes an event of one's own."""
        await self._do("publish", event={"eventName": event, **fields})

    async def wait(self, id: str, *, timeout: float = 15) -> Any:
        """``job.waitUntilFinished``: the result, or NodeError with the reason."""
        return await self._do("wait", id=id, seconds=timeout)

    async def work(self, worker: str | None = None, **options: Any) -> str:
        """Starts a worker with the handlers of peer.mjs; options are Node's. Gives the worker's handle."""
        self._workers += 1
        handle = worker or f"{self.name} worker {self._workers}"
        await self._do("work", worker=handle, options=options)
        return handle

    async def stop(self, worker: str, *, force: bool = False) -> None:
        """Closes a worker that ``work`` started."""
        await self._do("stop", worker=worker, force=force)

    async def board(self, route: str, *, method: str = "get", **given: Any) -> Any:
        """Asks the dashboard's API; gives the body of an answer with status 200."""
        answer = await self._do("board", route=route, method=method, **given)
        assert answer["status"] == 200, answer
        return answer["body"]
