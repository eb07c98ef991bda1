"""Effects that happen once, however often their job is delivered.

A queue that loses no job delivers some jobs twice: a worker that dies after the effect, before it can say so, leaves a
job that has to run again. Whether the effect then happens twice is decided where the effect happens:

* ``SQLOnce``: in the database transaction that makes the effect. Exactly once.
* ``RedisOnce``: around an effect outside of any transaction of ours, such as a call to a payment provider. Once, unless
  a process dies between the effect and its record; the far side closes that gap if it is given the same key.

``docs/idempotency.md`` says what each can and cannot promise.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias, TypeVar, get_args

from echomq._log import logger
from echomq._store.call import Patience, opened, repeated
from echomq._store.codec import decode_json, encode_json, moment_ms
from echomq._store.effects import Claim, claim_effect, effect_key, finish_effect, release_effect
from echomq._transaction import Dialect, Transaction, is_async_sqlalchemy, open_transaction
from echomq.connection import Connection, Hub
from echomq.errors import ConnectionLost, EchoMQError, InvalidOption, RetryLater, ServerUnavailable
from echomq.job import Job
from echomq.options import JSON, Duration, shown, to_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from types import TracebackType

    from echomq._redis.client import Link

MAX_KEY: Final = 255
"""Bytes of a key in UTF-8: what the key column of each database holds."""

_NULL: Final = b"null"
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")

T = TypeVar("T")


def job_key(job: Job[Any], part: str = "") -> str:
    """A key that stays the same over every delivery, stall and retry of one job, and that no other job has.

    It holds the queue, the task's name, the job's id and the moment when it was added: ids alone are counted from 1 in
    each queue, and again from 1 in a queue whose keys were deleted.

    A job that is *added* again, by a producer that tries again or by hand, is another job. Where that must not repeat
    the effect, use a key of the business instead, such as the order's number.

    Args:
        job: the job that a handler got.
        part: tells the effects of one job apart, such as ``"receipt"``.

    Example:
        >>> with once(db, job_key(job)) as effect: ...
    """
    moment = "" if job.timestamp is None else moment_ms(job.timestamp)
    whole = json.dumps([job.queue_name, job.name, job.id, moment, part], ensure_ascii=False, separators=(",", ":"))
    readable = f"{job.queue_name}/{job.name}/{job.id}@{moment}" + (f"/{part}" if part else "")
    # The digest tells apart what reads alike ("a/b" + "c", "a" + "b/c"), and what was cut.
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    most = MAX_KEY - len(digest) - 1
    return f"{readable.encode('utf-8', 'replace')[:most].decode('utf-8', 'ignore')}#{digest}".replace("\0", "?")


class Effect:
    """What an effect's block knows: whether the effect has been applied before, and what it gave.

    Attributes:
        key: the key that it happens once for.
    """

    def __init__(self, key: str, stored: bytes | None) -> None:
        self.key = key
        self._done = stored is not None
        self._text = stored or _NULL
        self._looked = False

    def __repr__(self) -> str:
        return f"<Effect {self.key!r} {'done' if self._done else 'to be applied'}>"

    @property
    def done(self) -> bool:
        """Whether an earlier delivery has applied the effect. Every block has to ask: ``if not effect.done: …``."""
        self._looked = True
        return self._done

    @property
    def result(self) -> Any:
        """What the effect gave, or None; as JSON has it, so that the first delivery and all later ones see the same."""
        return decode_json(self._text)

    @result.setter
    def result(self, value: JSON) -> None:
        if self._done:
            raise RuntimeError(f"{self!r} was applied by an earlier delivery, whose result stays: do not set another")
        self._text = encode_json(value, "effect.result")

    def _check_looked(self) -> None:
        if not self._looked:
            raise RuntimeError(
                f"the block of {self!r} never asked effect.done, so a redelivery would repeat the effect: begin it "
                "with `if not effect.done:`, and apply the effect there"
            )


# -- in the user's transaction -----------------------------------------------------------------------------------------


class DriverConnection(Protocol):
    """A connection of a DB-API driver."""

    def cursor(self) -> Any:
        """A new cursor."""

    def commit(self) -> Any:
        """End the transaction; keep it."""

    def rollback(self) -> Any:
        """End the transaction; undo it."""


class SQLAlchemyConnection(Protocol):
    """A Connection, Session, AsyncConnection or AsyncSession of SQLAlchemy."""

    def begin_nested(self) -> Any:
        """Set a savepoint."""


UserConnection: TypeAlias = DriverConnection | SQLAlchemyConnection


@dataclass(frozen=True)
class SQLOnce:
    """Applies effects once per key, in the database transaction that makes the effect.

    The key goes into a table of the same database, in the same transaction: both are committed, or neither.

    **It never commits: you do, after the block.** Without a commit the database undoes effect and key when the connection
    closes, and nothing says so: the job completes, and nothing has happened.

    For SQLite, PostgreSQL, MySQL and MariaDB, through DB-API drivers or SQLAlchemy.

    The block is whole: when it raises, its claim and all that it did in this connection are undone (to a savepoint),
    also if the caller catches the error and commits.

    Args:
        table: where the keys are kept; made by ``create_table``. A schema may come before it: ``audit.effects``.
        dialect: the database, where the driver is one that is not known here.

    Example:
        >>> once = SQLOnce()
        >>> def enroll(learner: int, course: str) -> dict[str, int]:
        ...     with closing(sqlite3.connect("school.db")) as db, db:               # commits, or rolls back
        ...         with once(db, f"enroll:{learner}:{course}") as effect:
        ...             if not effect.done:
        ...                 effect.result = {"seat": take_seat(db, learner, course)}
        ...     taken: dict[str, int] = effect.result
        ...     return taken
    """

    table: str = "echomq_effects"
    dialect: Dialect | None = None

    def __post_init__(self) -> None:
        given: object = self.table
        if not isinstance(given, str) or not _TABLE.fullmatch(given):
            raise InvalidOption(
                f"table={shown(self.table)}: must be a name of at most 63 ASCII letters, digits and '_', not beginning with "
                "a digit; a schema may come before it, with a dot"
            )
        if self.dialect is not None:
            _check_dialect(self.dialect)

    def create_table(self, dialect: Dialect) -> str:
        """The statement that makes the table, for a migration: ``"sqlite"``, ``"postgresql"`` or ``"mysql"``.

        Example:
            >>> db.execute(SQLOnce().create_table("sqlite"))
        """
        columns = _COLUMNS[_check_dialect(dialect)]
        return f"CREATE TABLE IF NOT EXISTS {self.table} ({columns})" + (" ENGINE=InnoDB" if dialect == "mysql" else "")

    def __call__(self, connection: UserConnection, key: str) -> SQLBlock:
        """The block of one effect: ``with``, or ``async with`` for an AsyncConnection or AsyncSession of SQLAlchemy.

        While another transaction is applying the same key, entering waits for its end.

        Args:
            connection: in whose transaction the effect happens. If none is open one is begun, as its driver would.
            key: at most 255 bytes in UTF-8; exact, upper and lower case differ.

        Raises:
            InvalidOption: the key or the connection breaks a rule, or the connection is in autocommit mode.
            RuntimeError: at the block's end: it did not ask ``effect.done``, or it ended the transaction itself.
        """
        return SQLBlock(self, connection, check_key(key))


# The result is ASCII (JSON escapes the rest), so that no encoding of a database or connection can change it. MySQL
# compares bytes, for its text collations take "a", "A" and "a " for the same.
_COLUMNS: Final[dict[Dialect, str]] = {
    "sqlite": "effect_key TEXT NOT NULL PRIMARY KEY, result TEXT, created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP",
    "postgresql": 'effect_key TEXT COLLATE "C" NOT NULL PRIMARY KEY, result TEXT, '
    "created_at TIMESTAMPTZ NOT NULL DEFAULT CURRENT_TIMESTAMP",
    "mysql": "effect_key VARBINARY(255) NOT NULL PRIMARY KEY, result LONGTEXT CHARACTER SET ascii, "
    "created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP",
}


def _check_dialect(dialect: Dialect) -> Dialect:
    if dialect not in get_args(Dialect):
        raise InvalidOption(
            f"dialect={shown(dialect)}: must be one of {', '.join(get_args(Dialect))} (MariaDB is mysql)"
        )
    return dialect


def check_key(key: object) -> str:
    """Checks an effect's key.

    Raises:
        InvalidOption: it is empty, too long, or no database could keep it as it is.
    """
    if not isinstance(key, str) or not key or "\0" in key:
        raise InvalidOption(f"key={shown(key)}: must be a text that is not empty and holds no NUL character")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidOption(f"key={shown(key)}: holds a lone surrogate, which has no UTF-8 form; remove it") from None
    if size > MAX_KEY:
        raise InvalidOption(
            f"key={shown(key)}: is {size} bytes long in UTF-8, and at most {MAX_KEY} are allowed; use a shorter one, "
            "such as hashlib.sha256(key.encode()).hexdigest()"
        )
    return key


class SQLBlock:
    """One use of ``SQLOnce``: a ``with`` block (``async with`` for SQLAlchemy's asynchronous connections)."""

    def __init__(self, once: SQLOnce, connection: UserConnection, key: str) -> None:
        self._once = once
        self._connection: Any = connection
        self._key = key
        self._transaction: Transaction | None = None
        self._effect: Effect | None = None

    def __enter__(self) -> Effect:
        """Claims the key, or finds the result of the delivery that has applied it."""
        if is_async_sqlalchemy(self._connection):
            raise InvalidOption(f"{self._connection!r:.200} is asynchronous: write `async with`")
        return self._enter(self._connection)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Keeps the result, or undoes the block."""
        self._exit(error)

    async def __aenter__(self) -> Effect:
        """Claims the key, or finds the result of the delivery that has applied it."""
        if not is_async_sqlalchemy(self._connection):
            raise InvalidOption(
                f"connection={self._connection!r:.200}: `async with` needs an AsyncConnection or AsyncSession of "
                "SQLAlchemy; a connection that blocks takes `with`, in a plain `def` task"
            )
        effect: Effect = await self._connection.run_sync(self._enter)
        return effect

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Keeps the result, or undoes the block."""
        await self._connection.run_sync(lambda _: self._exit(error))

    def _enter(self, connection: object) -> Effect:
        if self._transaction is not None:
            raise RuntimeError(f"the block of {self._key!r} was entered before: make a new one for each use")
        transaction = self._transaction = open_transaction(connection, self._once.dialect)
        transaction.savepoint()
        try:
            self._effect = self._claim(transaction)
        except BaseException:
            _undo(transaction)
            raise
        return self._effect

    def _claim(self, transaction: Transaction) -> Effect:
        table = self._once.table
        place, key = _written(transaction, self._key)
        if transaction.dialect == "mysql":
            insert = f"INSERT IGNORE INTO {table} (effect_key) VALUES ({place})"
            # A plain read would look at the moment when the transaction first read, before the other one's commit.
            find = f"SELECT result FROM {table} WHERE effect_key = {place} LOCK IN SHARE MODE"
        else:
            insert = f"INSERT INTO {table} (effect_key) VALUES ({place}) ON CONFLICT (effect_key) DO NOTHING"
            find = f"SELECT result FROM {table} WHERE effect_key = {place}"
        try:
            inserted = transaction.change(insert, key)
        except Exception as error:
            if table.rpartition(".")[2] in str(error):
                error.add_note(
                    f'If the table {table} is missing: make it with SQLOnce(…).create_table("{transaction.dialect}")'
                )
            raise
        if inserted == 1:
            return Effect(self._key, None)
        row = transaction.look_up(find, key)
        if row is None:
            raise RuntimeError(
                f"the row of {self._key!r} was deleted from {table} at this moment: deliver the job again"
            )
        (stored,) = row
        return Effect(self._key, stored.encode() if isinstance(stored, str) else bytes(stored or _NULL))

    def _exit(self, error: BaseException | None) -> None:
        transaction, effect = self._transaction, self._effect
        assert transaction is not None
        assert effect is not None
        if error is not None:
            _undo(transaction)
            return
        try:
            effect._check_looked()
            if not transaction.flush():
                raise _ended_inside(self._key)
            if not effect._done and effect._text != _NULL:
                ascii_only = json.dumps(effect.result, separators=(",", ":"))
                place, key = _written(transaction, self._key)
                update = f"UPDATE {self._once.table} SET result = {{}} WHERE effect_key = {place}"
                if transaction.change(update, ascii_only, key) != 1:
                    raise _ended_inside(self._key)
        except BaseException:
            _undo(transaction)
            raise
        try:
            transaction.keep()
        except Exception as failure:
            raise _ended_inside(self._key) from failure


def _written(transaction: Transaction, key: str) -> tuple[str, str]:
    """How a key stands in a statement, and its value. To MySQL bytes go as ASCII: its connections have any encoding."""
    return ("UNHEX({})", key.encode().hex()) if transaction.dialect == "mysql" else ("{}", key)


def _undo(transaction: Transaction) -> None:
    # It fails when the database has undone the whole transaction already, or the connection has gone: undone too.
    with contextlib.suppress(Exception):
        transaction.undo()


def _ended_inside(key: str) -> RuntimeError:
    return RuntimeError(
        f"the transaction of the effect {key!r} ended inside its block: commit or roll back after the block, not in it"
    )


# -- in Redis ----------------------------------------------------------------------------------------------------------


class RedisOnce:
    """Applies effects once per key where no transaction spans effect and record; keeps their results and replays them.

    A key is claimed under a lease, which is renewed while the block runs, and is done when the block ends. A delivery
    that comes later gets the stored result. One that comes meanwhile is put off (``RetryLater``). When the block
    raises, the claim is given up: the next delivery tries again.

    A process that dies inside the block leaves a lease that ends by itself; then the effect is tried again, although it
    may have happened. So this alone is not exactly once: give the far side ``effect.key`` as its idempotency key.

    Making one connects to nothing. With ``async with``, or ``close()``, it lets go of the connection.

    Args:
        connection: a ``Connection``, best the one that the worker has; or a URL, or None for ``ECHOMQ_URL``.
        prefix: what its keys begin with, followed by ``x::effect:``.
        expire: how long a result is kept. Longer than the time in which the job can be delivered again.
        lease: how long a process that has died holds others up. One whose event loop is blocked for longer loses its
            claim.

    Example:
        >>> once = RedisOnce("redis://localhost", expire=timedelta(days=30))
        >>> async def charge(order: str, cents: int) -> str:
        ...     async with once(f"charge:{order}") as effect:
        ...         if not effect.done:
        ...             payment = await provider.charge(cents, idempotency_key=effect.key)
        ...             effect.result = payment.id
        ...     return str(effect.result)
    """

    def __init__(
        self,
        connection: Connection | str | None = None,
        *,
        prefix: str = "emq",
        expire: Duration = timedelta(days=7),
        lease: Duration = 60.0,
    ) -> None:
        self._connection = Connection.of(connection)
        self._prefix = check_prefix(prefix)
        self._expire = to_seconds(expire, "expire", least=1)
        self._lease = to_seconds(lease, "lease", least=0.1, most=86_400)
        if self._expire < self._lease:
            raise InvalidOption(f"expire={expire!r}: must not be shorter than lease={lease!r}")
        self._hubs: dict[asyncio.AbstractEventLoop, Hub] = {}

    def __call__(self, key: str) -> RedisBlock:
        """The block of one effect: ``async with``.

        Args:
            key: at most 255 bytes in UTF-8.

        Raises:
            InvalidOption: the key breaks a rule.
            RetryLater: on entering: another delivery is applying the effect; has the time that its lease may still
                take. Raised from a handler it runs the job again after that time, without using an attempt.
            ServerUnavailable: on entering: nothing was claimed. On leaving: the result was not kept.
            ConnectionLost: on entering or leaving: whether the result was kept is unknown; the next delivery will tell.
            RuntimeError: at the block's end: it did not ask ``effect.done``.
        """
        return RedisBlock(self, check_key(key))

    async def close(self) -> None:
        """Lets go of the connection in this event loop; a block that comes later takes it up again."""
        hub = self._hubs.pop(asyncio.get_running_loop(), None)
        if hub is not None:
            await hub.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, call: Callable[[Link], Awaitable[T]], patience: float | None = None) -> T:
        """Calls until it has been answered; with the server away for ``patience`` seconds, or the connection's wait.

        Never longer than a lease, for then another may have the claim.
        """
        hub = self._hub()
        trying = Patience(hub.wait if patience is None else patience, hub.look_after, at_most=self._lease)
        link = await opened(
            lambda: hub.link(hash_tag=True), trying
        )  # one key a script, so any slot of a cluster will do
        return await repeated(link, lambda: call(link), trying)

    def _hub(self) -> Hub:
        loop = asyncio.get_running_loop()
        if loop not in self._hubs:
            for ended in [loop for loop in self._hubs if loop.is_closed()]:
                del self._hubs[ended]
            self._hubs[loop] = self._connection.acquire()
        return self._hubs[loop]


def check_prefix(prefix: object) -> str:
    """Checks what the keys begin with.

    Raises:
        InvalidOption: it is empty or has braces, which would put all effects into one slot of a cluster.
    """
    if not isinstance(prefix, str) or not prefix or "{" in prefix or "}" in prefix:
        raise InvalidOption(f"prefix={shown(prefix)}: must be a text that is not empty and has no braces")
    return prefix


class RedisBlock:
    """One use of ``RedisOnce``: an ``async with`` block."""

    def __init__(self, once: RedisOnce, key: str) -> None:
        self._once = once
        self._key = key
        self._place = effect_key(once._prefix, key)
        self._owner = secrets.token_urlsafe(12)
        self._effect: Effect | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Effect:
        """Claims the key, or finds the result of the delivery that has applied it."""
        if self._effect is not None:
            raise RuntimeError(f"the block of {self._key!r} was entered before: make a new one for each use")
        try:
            claim = await self._once._ask(self._claim)
        except asyncio.CancelledError:
            await _to_the_end(self._release())  # the claim may be on its way
            raise
        if claim.result is None and not claim.granted:
            raise RetryLater(claim.busy_for, f"the effect {self._key!r} is being applied by another delivery")
        self._effect = Effect(self._key, claim.result)
        if claim.granted:
            self._renewing = asyncio.create_task(self._renew(), name=f"echomq renew effect {self._key}")
        return self._effect

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Keeps the result, or gives the claim up."""
        # Whatever cancels us now, the server has to hear how it ended.
        await _to_the_end(self._leave(error))

    async def _leave(self, error: BaseException | None) -> None:
        effect = self._effect
        assert effect is not None
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        if error is not None:
            await self._release()
            return
        try:
            effect._check_looked()
        except RuntimeError:
            await self._release()
            raise
        if not effect._done:
            await self._finish(effect)

    def _claim(self, link: Link) -> Awaitable[Claim]:
        return claim_effect(link, self._place, self._owner, self._once._lease)

    async def _renew(self) -> None:
        third = self._once._lease / 3
        while True:
            await asyncio.sleep(third)
            try:
                claim = await self._once._ask(self._claim, patience=third)
            except (ServerUnavailable, ConnectionLost):
                continue
            except (EchoMQError, RuntimeError):  # RuntimeError: the connection was closed
                logger.exception("the lease of the effect %r cannot be renewed", self._key)
                return
            if not claim.granted:
                logger.warning(
                    "the lease of the effect %r was lost: its event loop was blocked, or the server was away, for "
                    "longer than its %g s; another delivery applies the effect too",
                    self._key,
                    self._once._lease,
                )
                return

    async def _finish(self, effect: Effect) -> None:
        text, expire = effect._text, self._once._expire
        other = await self._once._ask(lambda link: finish_effect(link, self._place, self._owner, text, expire))
        if other is not None:
            logger.warning("the effect %r was applied by another delivery as well; the first result stays", self._key)
            effect._text = other

    async def _release(self) -> None:
        # Tried once. What goes wrong here costs the next delivery the rest of the lease, and must not hide the error
        # that ended the block.
        try:
            await self._once._ask(lambda link: release_effect(link, self._place, self._owner), patience=0)
        except (EchoMQError, RuntimeError) as error:
            logger.debug("the claim of the effect %r stays until its lease ends: %s", self._key, error)


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Awaits work that has to be finished before a cancellation may go on."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # seen; the cancellation says all that the caller needs
        raise cancelled
    task.result()
