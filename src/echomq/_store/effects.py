"""Effects: claimed, applied, their results kept for later deliveries (``RedisOnce``).

A claim carries a random owner, and each script looks at the owner first. So each call may be sent again after a lost
reply, without a lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from echomq._lua.loader import script
from echomq._store.call import explain
from echomq._store.codec import to_ms
from echomq.errors import ServerError

if TYPE_CHECKING:
    from echomq._redis.client import Link
    from echomq._redis.wire import Argument, Reply

_CLAIM, _FINISH, _RELEASE = "claimEffect-1", "finishEffect-1", "releaseEffect-1"
_GRANTED, _DONE = 1, 2


@dataclass(frozen=True, slots=True)
class Claim:
    """What became of a claim.

    Attributes:
        granted: the caller may apply the effect.
        result: what the effect gave, as JSON, if it has been applied; else None.
        busy_for: seconds for which another holds it, at most.
    """

    granted: bool = False
    result: bytes | None = None
    busy_for: float = 0.0


def effect_key(prefix: str, key: str) -> str:
    """The key of an effect. No queue has an empty name, so none of a queue's own keys can be meant."""
    return f"{prefix}x::effect:{key}"


async def claim_effect(link: Link, effect: str, owner: str, lease: float) -> Claim:
    """Claims an effect for ``lease`` seconds, or renews the owner's claim."""
    reply = await _call(link, _CLAIM, effect, (owner, str(to_ms(lease))))
    assert isinstance(reply, list)
    if reply[0] == _GRANTED:
        return Claim(granted=True)
    second = reply[1]
    if reply[0] == _DONE:
        assert isinstance(second, bytes)
        return Claim(result=second)
    assert isinstance(second, int)
    return Claim(busy_for=max(second, 1) / 1000)


async def finish_effect(link: Link, effect: str, owner: str, result: bytes, expire: float) -> bytes | None:
    """Keeps the result for ``expire`` seconds. Gives the result that another kept before, or None."""
    reply = await _call(link, _FINISH, effect, (owner, result, str(to_ms(expire))))
    assert isinstance(reply, list)
    if reply[0] == _GRANTED:
        return None
    assert isinstance(reply[1], bytes)
    return reply[1]


async def release_effect(link: Link, effect: str, owner: str) -> None:
    """Gives a claim up. If that fails, the claim ends with its lease."""
    await _call(link, _RELEASE, effect, (owner,))


async def _call(link: Link, name: str, effect: str, args: tuple[Argument, ...]) -> Reply:
    called = script(name)
    command = ("EVALSHA", called.sha, "1", effect, "", "", *args)  # no queue's base, no injected clock
    try:
        return await link.call(*command)
    except ServerError as error:
        if error.code != "NOSCRIPT":
            raise explain(error, called) from None
    await link.call("SCRIPT", "LOAD", called.source)
    try:
        return await link.call(*command)
    except ServerError as error:
        raise explain(error, called) from None
