"""Limits of a queue, for all its workers: how many jobs run at once, and how many start in a time."""

from __future__ import annotations

from echomq._store.codec import duration_ms
from echomq._store.line import Line
from echomq.options import Duration, Limiter


async def set_concurrency(line: Line, most: int | None) -> None:
    """At most so many jobs are active; None for any number."""
    await line.call("setLimits-7", ("concurrency", "" if most is None else str(most)))


async def concurrency(line: Line) -> int | None:
    """How many jobs may be active, or None."""
    return _whole(await line.ask("HGET", line.keys.key("meta"), "concurrency"))


async def set_rate(line: Line, limiter: Limiter | None) -> None:
    """At most so many starts in a window; None for any number."""
    most = "" if limiter is None else str(limiter.max)
    window = "" if limiter is None else str(duration_ms(limiter.duration, "duration"))
    await line.call("setLimits-7", ("max", most, "duration", window))


async def rate(line: Line) -> Limiter | None:
    """The rate limit of the queue, or None."""
    reply = await line.ask("HMGET", line.keys.key("meta"), "max", "duration")
    assert isinstance(reply, list)
    most, window = map(_whole, reply)
    if most is None or most < 1:  # by the hand of another program; it limits nothing
        return None
    return Limiter(most, 1.0 if window is None else max(window, 1) / 1000)


async def limit_by_hand(line: Line, after: Duration) -> None:
    """Lets no worker fetch for so long; 0 lifts what is left of such a limit."""
    await line.call("rateLimit-8", (str(duration_ms(after, "after")),))


async def ttl(line: Line, most: int | None) -> float:
    """Seconds until the rate window opens."""
    reply = await line.read("getRateLimitTtl-2", ("" if most is None else str(most),))
    assert isinstance(reply, int)
    return reply / 1000


def _whole(text: object) -> int | None:
    try:
        return int(text)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):  # absent, or no number, which limits nothing
        return None
