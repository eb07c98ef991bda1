"""How a script is called: by its hash, in a lane, until it has been answered once.

Every script that changes something is called in a lane: a random id and a call number. When a reply is lost the call
is sent again with the same number, and the script answers from its record instead of acting twice
(docs/architecture.md). A lane has one call in flight.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol, TypeVar

from echomq._lua.loader import Script, script
from echomq._redis.client import Link
from echomq._redis.wire import Argument, Head, Reply, code_of
from echomq._store.keys import QueueKeys
from echomq.errors import BrokenKey, ConnectionLost, ServerError, ServerUnavailable, StaleCall

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0

REFUSED_FOR: Final = 10.0
"""Seconds for which a server that refuses a connection that it had taken before (its password, a right) is tried again: its
users may just be being changed. What is refused for longer is refused for good."""

_BROKEN = re.compile(r"BROKEN (.*?)(?: script: |$)")
_REFUSED = re.compile(r"REFUSED (.*?)(?: script: |$)")


@lru_cache(maxsize=4096)
def _head(name: str, keys: QueueKeys) -> Head:
    named = script(name)
    return Head("EVALSHA", named.sha, str(len(named.keys)), *map(keys.resolve, named.keys), keys.base)


def explain(error: ServerError, called: Script) -> ServerError:
    """The error of a script, as what it means, with its place in our files."""
    message = str(error)
    if "STALE " in message:
        return StaleCall(message, code="STALE")
    where = called.locate(message)
    place = f" (in {where})" if where else f" (in {called.name})"
    broken = _BROKEN.search(message)
    if broken:
        return BrokenKey(f"{broken[1]}; nothing was changed{place}", code="BROKEN")
    refused = _REFUSED.search(message)
    if refused:
        return ServerError(f"the server refuses {refused[1]}; nothing was changed{place}", code="NOPERM")
    if error.code == "WRONGTYPE" or "WRONGTYPE" in message:
        return BrokenKey(message + place, code="WRONGTYPE")
    return ServerError(message + place, code=code_of(error))


async def run_script(link: Link, name: str, keys: QueueKeys, args: Sequence[Argument], clock: str = "") -> Reply:
    """Calls a script once. Never sends it a second time, except when the server says that it does not know it."""
    return await _call(link, name, _head(name, keys), (clock, *args))


async def _call(link: Link, name: str, head: Head, args: Sequence[Argument]) -> Reply:
    try:
        return await link.call_with(head, args)
    except ServerError as error:
        called = script(name)
        if error.code != "NOSCRIPT":
            raise explain(error, called) from None
    try:
        await link.call("SCRIPT", "LOAD", called.source)
    except ConnectionLost as error:  # of the script; the call itself has not been sent
        raise ServerUnavailable(str(error)) from error
    try:
        return await link.call_with(head, args)
    except ServerError as error:
        raise explain(error, called) from None


class Caller(Protocol):
    """One who waits for a call."""

    @property
    def future(self) -> asyncio.Future[Any]:
        """Gets the answer."""


class Patience:
    """How long a caller goes on trying when the server is away, and what it wants to hear meanwhile.

    Args:
        seconds: ``math.inf`` to go on for ever.
        on_trouble: awaited after each failed try.
        at_most: seconds after which there is no further try, not even to ask what became of a call that was sent.
        callers: who waits for the call, where that is known: once all have been cancelled, it is not sent any more.
    """

    def __init__(
        self,
        seconds: float,
        on_trouble: Callable[[Exception], Awaitable[None]] | None = None,
        at_most: float = math.inf,
        callers: Sequence[Caller] = (),
    ) -> None:
        self.seconds = seconds
        self.on_trouble = on_trouble
        self.at_most = at_most
        self._callers = callers

    @property
    def is_given_up(self) -> bool:
        """Whether all who waited have gone."""
        return bool(self._callers) and all(one.future.cancelled() for one in self._callers)


class _Tries:
    """The tries of one call: when the next may come, and when there is none any more.

    Attributes:
        sent: whether the call may have been carried out.
    """

    __slots__ = ("_asks", "_give_up", "_last", "_loop", "_patience", "_pause", "_reads", "_refused_at", "sent")

    def __init__(
        self, patience: Patience, started: float | None = None, *, sent: bool = False, reads: bool = False
    ) -> None:
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        if started is None:
            started = self._loop.time()
        self._last = started + patience.at_most
        self._give_up = min(started + patience.seconds, self._last)
        self._pause = _FIRST_PAUSE
        self._asks = False
        self._reads = reads
        self._refused_at: float | None = None
        self.sent = sent

    async def next(self, trouble: Exception) -> None:
        """Waits for the next try, or raises what the caller is to hear."""
        patience = self._patience
        if self._reads and isinstance(trouble, ConnectionLost):
            trouble = ServerUnavailable(str(trouble))  # nothing that could have been carried out
        if isinstance(trouble, ConnectionLost) and not self._asks:
            # However long its reply was waited for: from now on there is time to ask what became of the call.
            self.sent = self._asks = True
            self._give_up = min(max(self._give_up, self._loop.time() + patience.seconds), self._last)
        if patience.on_trouble is not None:
            await patience.on_trouble(trouble)
        wait = self._pause * (0.5 + random.random())  # spreads the callers; no secret
        if self._loop.time() + wait > self._give_up or self._is_given_up:
            raise self._last_word(trouble)
        await asyncio.sleep(wait)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    async def again(self, link: Link, trouble: Exception) -> None:
        """Waits until there is a connection for the next try, or raises what the caller is to hear."""
        while True:
            await self.next(trouble)
            try:
                await self._reconnect(link)
                break
            except Exception as error:  # of the connection, not of the call
                trouble = error
            if not self._may_pass(trouble):
                raise self._last_word(trouble)
        if self._is_given_up:
            raise trouble

    @property
    def _is_given_up(self) -> bool:
        """Whether nobody waits any more for a call that has surely not been carried out."""
        return not self.sent and self._patience.is_given_up

    async def _reconnect(self, link: Link) -> None:
        if link.connected:
            return
        try:
            async with asyncio.timeout_at(self._give_up if self._give_up < math.inf else None):
                await link.connect()
        except TimeoutError:
            where = link.settings.where
            raise ServerUnavailable(f"{where}: no connection within {self._patience.seconds:g} s") from None

    def _may_pass(self, trouble: Exception) -> bool:
        if not isinstance(trouble, ServerError):
            self._refused_at = None
            return isinstance(trouble, ServerUnavailable)
        now = self._loop.time()
        if self._refused_at is None:
            self._refused_at = now
        return now - self._refused_at < REFUSED_FOR

    def _last_word(self, trouble: Exception) -> Exception:
        if not self.sent or isinstance(trouble, ConnectionLost):
            return trouble
        lost = ConnectionLost(f"the call was sent, and could not be repeated: {trouble}")
        lost.__cause__ = trouble
        return lost


async def opened(open_link: Callable[[], Awaitable[Link]], patience: Patience) -> Link:
    """The link that ``open_link`` gives, tried until patience ends.

    Raises:
        ServerUnavailable: patience ended.
    """
    tries = _Tries(patience)
    while True:
        try:
            return await open_link()
        except (ServerUnavailable, ConnectionLost) as error:
            await tries.next(ServerUnavailable(str(error)))  # whatever was asked to open it, the call was not sent


async def read_script(link: Link, name: str, keys: QueueKeys, args: Sequence[Argument], patience: Patience) -> Reply:
    """Calls a script that changes nothing, until it has been answered or until patience ends.

    Raises:
        ServerUnavailable: patience ended.
        BrokenKey, ServerError: the script's own answer.
    """
    return await answered(link, lambda: run_script(link, name, keys, args), patience)


async def read_command(link: Link, command: Sequence[Argument], patience: Patience) -> Reply:
    """Sends a command that changes nothing, as ``read_script`` calls a script."""
    return await answered(link, lambda: link.call(*command), patience)


async def answered(link: Link, read: Callable[[], Awaitable[T]], patience: Patience) -> T:
    """What ``read`` gives, which asks over the link and changes nothing: tried until it was answered or patience ends.

    Raises:
        ServerUnavailable: patience ended.
    """
    started = asyncio.get_running_loop().time()
    try:
        return await read()
    except (ServerUnavailable, ConnectionLost) as error:
        trouble: Exception = error
    return await _further(link, read, _Tries(patience, started, reads=True), trouble)


async def repeated(link: Link, call: Callable[[], Awaitable[T]], patience: Patience) -> T:
    """What ``call`` gives, which sends what acts once however often it is sent: tried until it was answered or patience ends.

    Raises:
        ServerUnavailable: patience ended, and the call was surely not carried out.
        ConnectionLost: patience ended, and the call may have been carried out.
    """
    started = asyncio.get_running_loop().time()
    try:
        return await call()
    except (ServerUnavailable, ConnectionLost) as error:
        trouble: Exception = error
    return await _further(link, call, _Tries(patience, started), trouble)


async def _further(link: Link, call: Callable[[], Awaitable[T]], tries: _Tries, trouble: Exception) -> T:
    while True:
        await tries.again(link, trouble)
        try:
            return await call()
        except (ServerUnavailable, ConnectionLost) as error:
            trouble = error


class Lane:
    """One line of calls. The owner makes the next call when the last has returned; a cancelled one, it makes again.

    Args:
        process: what its id begins with, so that the locks which it sets can be told to be this process's.
    """

    __slots__ = ("_again", "_heads", "_keys", "_link", "_number", "_process", "_under_way", "id")

    def __init__(self, link: Link, keys: QueueKeys, process: str = "") -> None:
        self._process = process
        self.id = process + secrets.token_urlsafe(9)
        self._link = link
        self._keys = keys
        self._heads: dict[str, Head] = {}
        self._number = 0
        self._under_way = False
        self._again = False

    def _begin_anew(self) -> None:
        """As another lane: somebody has written into the record of this one, so that no further call would be taken."""
        self.id = self._process + secrets.token_urlsafe(9)
        self._heads.clear()
        self._number = 0

    def step_back(self) -> None:
        """If the last call was cancelled, its answer is unknown: the next one is to be the same call again."""
        if self._under_way:
            self._number -= 1
            self._under_way, self._again = False, True

    @property
    def next_token(self) -> str:
        """The token that jobs fetched by the next call will be locked with."""
        return f"{self.id}:{self._number + 1}"

    async def call(self, name: str, args: Sequence[Argument], patience: Patience) -> Reply:
        """Calls a script until it has been answered, or until patience ends.

        Raises:
            ServerUnavailable: patience ended, and the call was surely not carried out.
            ConnectionLost: patience ended, and the call may have been carried out.
            StaleCall, BrokenKey, ServerError: the script's own answer.
        """
        self._number += 1
        self._under_way = True
        again, self._again = self._again, False
        try:
            reply = await self._until_answered(name, args, patience, again)
        except Exception:  # not a cancellation
            self._under_way = False
            raise
        self._under_way = False
        return reply

    async def _until_answered(self, name: str, args: Sequence[Argument], patience: Patience, again: bool) -> Reply:
        number = str(self._number)
        head = self._heads.get(name)
        if head is None:
            head = self._heads[name] = Head(*_head(name, self._keys).args, "", self.id)  # "": the server's own clock
        started = asyncio.get_running_loop().time()
        try:
            return await _call(self._link, name, head, (number, "1" if again else "", *args))
        except StaleCall:
            self._begin_anew()
            raise
        except (ConnectionLost, ServerUnavailable) as error:
            trouble: Exception = error
        tries = _Tries(patience, started, sent=again)

        def repeat() -> Awaitable[Reply]:
            return _call(self._link, name, head, (number, "1" if tries.sent else "", *args))

        try:
            return await _further(self._link, repeat, tries, trouble)
        except StaleCall as error:
            self._begin_anew()
            if tries.sent:
                raise ConnectionLost(f"the call was sent, and there is no record of what it did: {error}") from error
            raise
