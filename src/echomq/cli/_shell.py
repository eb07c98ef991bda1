"""What the commands that look at queues share: their options, the connection, how they ask, answer and fail."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import io
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Concatenate, Final, NoReturn, ParamSpec, get_type_hints

import typer

from echomq import (
    BrokenKey,
    Connection,
    EchoMQError,
    EncodingError,
    InvalidOption,
    Job,
    JobNotFound,
    JobRemoved,
    Queue,
    ResultTimeout,
)
from echomq._redis import embedded
from echomq._redis.embedded.places import MEMORY
from echomq.cli import _text
from echomq.cli._loop import run_in_loop

REFUSED: Final = 1
"""Exit code: it failed, or was refused."""
MISUSE: Final = 2
"""Exit code: an argument breaks a rule; nothing was done."""
NOT_FOUND: Final = 3
"""Exit code: there is no such job or queue."""
TIMED_OUT: Final = 4
"""Exit code: the time of --timeout is up."""
INTERRUPTED: Final = 130
"""Exit code: Ctrl-C."""
_NO_READER: Final = 141
"""Exit code when whoever read the output has gone, as of a program that SIGPIPE ended."""

_PATIENCE: Final = 3.0
_SILENCE: Final = 5.0
_PROGRESS_EVERY: Final = 0.1

P = ParamSpec("P")
Work = Callable[Concatenate["Shell", P], Coroutine[Any, Any, None]]


def _checked(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    """A reader of option values as Typer wants it."""

    def parse(given: Any) -> Any:
        if not isinstance(given, str):
            return given  # a default
        try:
            return read(given)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parse


def seconds_option(*names: str, help: str) -> Any:
    """An option that takes a length of time."""
    return typer.Option(*names, parser=_checked(_text.to_seconds), metavar="TIME", help=help, show_default=False)


def moment_option(*names: str, help: str) -> Any:
    """An option that takes a moment."""
    return typer.Option(*names, parser=_checked(_text.to_moment), metavar="MOMENT", help=help, show_default=False)


QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
Url = Annotated[str | None, typer.Option(metavar="URL", help="The server; left out, ECHOMQ_URL.", show_default=False)]
Prefix = Annotated[str, typer.Option(metavar="TEXT", help="What the keys begin with; bull for queues of BullMQ.")]
HashTag = Annotated[
    bool | None,
    typer.Option(
        "--hash-tag/--no-hash-tag",
        help="Whether queue names stand in braces in the keys; left out, yes, except with the prefix bull.",
        show_default=False,
    ),
]


def _common(
    *,
    url: Url = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="What the keys begin with; bull for queues of BullMQ; left out, emq.",
            show_default=False,
        ),
    ] = None,
    hash_tag: HashTag = None,
    app: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="In place of these: the app whose server and keys they are, package.module:name, as for echomq worker.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float | None, seconds_option("--timeout", help="Give up after this time, with exit code 4.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The options of every command, as Typer sees them."""


_COMMON: Final = {
    parameter.name: parameter.replace(annotation=get_type_hints(_common, include_extras=True)[parameter.name])
    for parameter in inspect.signature(_common).parameters.values()
}


def command(
    app: typer.Typer | None = None,
    name: str | None = None,
    *,
    patience: float = _PATIENCE,
    is_timed: bool = True,
    makes: bool = False,
) -> Callable[[Work[P]], Callable[..., None]]:
    """Makes a command of a coroutine function whose first argument is the ``Shell``: it gets the common options besides.

    Args:
        app: the group that it belongs to. Without one, what comes out is for ``echomq.cli.main`` to register.
        name: left out, the function's.
        patience: seconds for which a call goes on trying while the server is away; ``--timeout`` says otherwise.
        is_timed: whether ``--timeout`` ends the command; if not, it sees to that itself.
        makes: whether it may be the first that uses a server of the user's own, which is made then.
    """

    def register(work: Work[P]) -> Callable[..., None]:
        hints = get_type_hints(work, include_extras=True)
        own = [
            parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in list(inspect.signature(work).parameters.values())[1:]
        ]
        called = name or work.__name__.replace("_", "-")
        path = f"{app.info.name} {called}" if app is not None else called

        @functools.wraps(work)
        def run(**given: Any) -> None:
            common = {option: given.pop(option) for option in _COMMON}

            def begin() -> Coroutine[Any, Any, None]:
                shell = _shell(path, common, _times(common["timeout"], patience))
                if not makes:
                    _refuse_to_make(shell.connection.where)
                return _carry_out(functools.partial(work, **given), shell, is_timed)

            raise typer.Exit(_run(f"echomq {path}", begin))

        del run.__wrapped__  # Typer would ask it for its parameters
        parameters = [*own, *_COMMON.values()]
        run.__signature__ = inspect.Signature(parameters, return_annotation=None)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": None}
        if app is not None:
            app.command(called)(run)
        return run

    return register


def _run(path: str, begin: Callable[[], Coroutine[Any, Any, None]]) -> int:
    # What the library logs of reconnecting and the like is no concern of a command that says itself what failed.
    logging.getLogger("echomq").addHandler(logging.NullHandler())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that knows no UTF-8
    try:
        work = begin()  # before there is an event loop: the module of an app may run one of its own
        run_in_loop(work)
        sys.stdout.flush()
    except EchoMQError as error:
        more = "; echomq doctor says what is damaged" if isinstance(error, BrokenKey) else ""
        # With the line breaks gone: one error, one line.
        typer.echo(f"{path}: {' '.join(_text.harmless(str(error)).split())}{more}", err=True)
        return _exit_code(error)
    except BrokenPipeError:
        # Nobody reads on. Python would complain when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _NO_READER
    except KeyboardInterrupt:
        return INTERRUPTED
    except typer.Exit as end:
        return end.exit_code
    return 0


def _times(timeout: float | None, patience: float) -> dict[str, float]:
    """The times of the connection."""
    if not patience:  # what goes on looking wants to hear soon that it cannot
        limit = _SILENCE if timeout is None else max(timeout, 0.001)
        return {"wait": 0, "call_timeout": limit, "connect_timeout": limit}
    if timeout is None:
        return {"wait": patience}
    # A server that is away is told of in time, with the reason; one that is silent has until --timeout.
    return {"wait": timeout * 0.9, "call_timeout": timeout + 1, "connect_timeout": timeout + 1}


def _shell(path: str, common: dict[str, Any], times: dict[str, float]) -> Shell:
    """What the common options say."""
    rest = {"timeout": common["timeout"], "as_json": common["as_json"]}
    if common["app"] is None:
        if not (common["url"] or os.environ.get("ECHOMQ_URL")):
            misuse(
                "no server was named: add --url redis://localhost:6379/0, or --app school:app for that of an app, or set "
                "ECHOMQ_URL; embedded://name is a server of your own, which EchoMQ starts for you"
            )
        prefix = "emq" if common["prefix"] is None else common["prefix"]
        return Shell(Connection(common["url"], **times), prefix=prefix, hash_tag=common["hash_tag"], **rest)
    for option in ("url", "prefix", "hash_tag"):
        if common[option] is not None:
            misuse(
                f"--app {common['app']}: the app has its server and its keys; leave --{option.replace('_', '-')} out"
            )
    from echomq.cli.worker.target import keys_of, load  # only now: it comes with the worker, which needs this module

    found = load(common["app"], path)
    prefix, hash_tag = keys_of(common["app"], found, path)
    return Shell(found.connection.like(**times), prefix=prefix, hash_tag=hash_tag, **rest)


def _refuse_to_make(where: str) -> None:
    """An embedded server is made when it is first used; but not by who only looks, perhaps under a wrong name."""
    scheme, _, name = where.partition("://")
    if scheme == "embedded" and name != MEMORY and name not in embedded.names():
        raise JobNotFound(f"there is no embedded server {name!r} yet; echomq server list shows those that are there")


async def _carry_out(work: Callable[[Shell], Coroutine[Any, Any, None]], shell: Shell, is_timed: bool) -> None:
    async with shell.connection:
        try:
            async with shell.in_time() if is_timed else contextlib.nullcontext():
                await work(shell)
        finally:
            await shell.close()


class Refusal(EchoMQError):
    """A command does not do what it was asked to; says why, and what to do."""


class TimeIsUp(EchoMQError):
    """``--timeout`` is over."""


def _exit_code(error: EchoMQError) -> int:
    match error:
        case InvalidOption() | EncodingError():
            return MISUSE
        case JobNotFound() | JobRemoved():
            return NOT_FOUND
        case ResultTimeout() | TimeIsUp():
            return TIMED_OUT
    return REFUSED


class Shell:
    """What one command has: the server that its options name, and the terminal.

    Attributes:
        connection, prefix, hash_tag: the server, and how its keys are named.
        timeout: seconds after which to give up, if that was said.
        as_json: whether a program reads what is printed.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        prefix: str,
        hash_tag: bool | None,
        timeout: float | None,
        as_json: bool,
    ) -> None:
        self.connection: Connection = connection
        self.prefix: str = prefix
        self.hash_tag: bool | None = hash_tag
        self.timeout: float | None = timeout
        self.as_json: bool = as_json
        self._queues: list[Queue] = []

    @contextlib.asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """What is within may take as long as ``--timeout`` says.

        Raises:
            TimeIsUp: it was not done by then.
        """
        try:
            async with asyncio.timeout(self.timeout) as timer:
                yield
        except TimeoutError:
            if not timer.expired():
                raise
            raise TimeIsUp(
                f"not done within {_text.duration(self.timeout or 0)} (--timeout); what was sent may still be carried out"
            ) from None

    def queue(self, name: str) -> Queue:
        """A queue of this server. It is closed at the end of the command."""
        queue = self.open_queue(name)
        self._queues.append(queue)
        return queue

    def open_queue(self, name: str) -> Queue:
        """A queue of this server, for its caller to close."""
        return Queue(name, connection=self.connection, prefix=self.prefix, hash_tag=self.hash_tag)

    async def names(self) -> list[str]:
        """The names of the queues of this server, sorted."""
        return await Queue.names(self.connection, prefix=self.prefix, hash_tag=self.hash_tag)

    async def job(self, queue: str, job_id: str) -> Job[Any]:
        """A job of this server.

        Raises:
            JobNotFound: it is not there.
        """
        found = await self.queue(queue).get_job(job_id)
        if found is None:
            raise JobNotFound(
                f"there is no job {job_id!r} in queue {queue!r} at {self.connection.where} (prefix {self.prefix!r}): it was "
                "removed, or is in another queue; echomq queue list shows the queues"
            )
        return found

    async def is_there(self, queue: Queue) -> bool:
        """Tells an empty queue from a slip of the finger."""
        return any((await queue.counts()).values()) or queue.name in await self.names()

    async def must_exist(self, queue: Queue) -> None:
        """Looks whether it is there.

        Raises:
            JobNotFound: it is not.
        """
        if not await self.is_there(queue):
            raise self.no_queue(queue.name)

    def no_queue(self, name: str) -> JobNotFound:
        """The error that there is no such queue."""
        return JobNotFound(
            f"there is no queue {name!r} at {self.connection.where} (prefix {self.prefix!r}); echomq queue list shows those "
            "that are there"
        )

    async def is_its_name(self, queue: Queue, there_is: str) -> str:
        """What to ask beside the answer: a queue may be named before its first job; it may also have another name."""
        if self.as_json or await self.is_there(queue):
            return ""
        return f"{queue.name}: {there_is}; is that its name? echomq queue list shows those that are there"

    async def close(self) -> None:
        """Lets the queues go."""
        for queue in self._queues:
            await queue.close()

    # -- answers -------------------------------------------------------------------------------------------------------

    def answer(self, record: object, lines: str | Iterable[str]) -> None:
        """Prints the record as one line of JSON, or the lines, as was wished."""
        if self.as_json:
            self.print_json(record)
        else:
            for line in [lines] if isinstance(lines, str) else lines:
                typer.echo(line)

    def print_json(self, record: object) -> None:
        """Prints it as one line of JSON, and at once."""
        typer.echo(_text.to_json(record))

    def note(self, text: str) -> None:
        """Tells people something beside the answer."""
        if text and not self.as_json:
            typer.echo(text, err=True)

    @contextlib.contextmanager
    def progress(self, verb: str) -> Iterator[Callable[[int], None]]:
        """A function to be told how many jobs are done: shows it on a terminal, on one line that is gone at the end."""
        shown, is_shown = 0.0, False

        def done(number: int) -> None:
            nonlocal shown, is_shown
            if sys.stderr.isatty() and time.monotonic() - shown >= _PROGRESS_EVERY:
                shown, is_shown = time.monotonic(), True
                print(f"\r{verb}: {_text.jobs(number)}\x1b[K", end="", file=sys.stderr, flush=True)  # noqa: T201

        try:
            yield done
        finally:
            if is_shown:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)  # noqa: T201

    async def agree(self, question: str, yes: bool, *, expect: str | None = None) -> None:
        """Asks before something is destroyed; ``expect`` is what has to be typed, left out a y.

        Raises:
            Refusal: the answer is no, or there is nobody to ask.
        """
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise Refusal(f"{question} There is no terminal to ask on: say --yes; nothing was changed")
        wanted = "[y/N]" if expect is None else f"Type {expect} to go on:"
        print(f"{question} {wanted} ", end="", file=sys.stderr, flush=True)  # noqa: T201
        answer = (await _line()).strip()
        if answer != expect and (expect is not None or answer.lower() not in ("y", "yes")):
            raise Refusal("not confirmed; nothing was changed")


async def _line() -> str:
    """A line of the terminal, without a thread, so that Ctrl-C ends the wait."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    return sys.stdin.readline()


def misuse(message: str) -> NoReturn:
    """Ends the command: its words do not fit together."""
    raise InvalidOption(message)


def utc(moment: datetime | None) -> datetime | None:
    """As it stands in JSON."""
    return None if moment is None else moment.astimezone(UTC)
