"""What is done to a queue as a whole: it is removed, or what is left of jobs is, and its event log is kept short."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

from echomq._store import control
from echomq._store.heal import Way, lost, nowhere
from echomq._store.limits import limit_by_hand
from echomq._store.line import Line
from echomq._store.names import foreign, is_of_a_queue, owner, pages, wire
from echomq.errors import JobLocked, StateError
from echomq.options import OnProgress

_NOT_PAUSED, _RUNNING, _TO_BE_FORWARDED = -1, -2, -4
_STEP: Final = 250
_GONE: Final = b"gone"


async def obliterate(line: Line, *, force: bool, on_progress: OnProgress) -> int:
    """Pauses the queue and removes every key of it, in steps. Gives how many jobs there were.

    First go the jobs, then what is found of the queue by its name beside them, and last, in one step and only if no job was
    added meanwhile, the keys that it has once: with them goes the pause.

    Raises:
        JobLocked: jobs are being run, and it is not forced.
        StateError: outcomes wait to be forwarded, and it is not forced; or somebody has resumed the queue meanwhile.
    """
    await control.pause(line)
    removed = 0

    async def clear(keys: Sequence[bytes] = (), *, searched: bool = True) -> None:
        nonlocal removed
        more = 1
        while more:
            args = ("1" if force else "", "1" if searched else "", *keys)
            _, code, count, more = await line.call("obliterate-12", args)
            if code == _RUNNING:
                raise JobLocked(
                    f"queue {line.keys.queue!r} is not obliterated: workers are running jobs of it. It is paused now: wait for "
                    "their end and call again, or use force=True, which leaves them nothing to end; or resume the queue"
                )
            if code == _TO_BE_FORWARDED:
                raise StateError(
                    f"queue {line.keys.queue!r} is not obliterated: outcomes of its jobs are still on their way to a results "
                    "queue, which a running worker of it brings there. It is paused now: call again when outbox_size() is 0, or "
                    "use force=True, which drops them; or resume the queue"
                )
            _check_paused(line, code, removed)
            removed += count
            on_progress(removed)

    await clear(searched=False)
    await limit_by_hand(
        line, 0
    )  # wakes workers that sleep until a limit ends: they are to notice when there is work anew
    async for keys in _beside(line):
        for start in range(0, len(keys), _STEP):
            await clear(keys[start : start + _STEP])
        on_progress(removed)
    left = True
    while left:
        await clear()
        code = await line.read("forgetQueue-10", line.keys.once)
        assert isinstance(code, int)
        _check_paused(line, code, removed)
        left = code == 0
    return removed


def _check_paused(line: Line, code: int, removed: int) -> None:
    if code == _NOT_PAUSED:
        raise StateError(
            f"queue {line.keys.queue!r} is not obliterated: somebody has resumed it meanwhile, or uses it anew; "
            f"{removed} of its jobs are gone"
        )


async def _beside(line: Line) -> AsyncIterator[list[bytes]]:
    """The keys of the queue that are not those of its jobs, nor such as it has once, page by page."""
    keys = line.keys
    once = set(map(wire, keys.once))
    base, own_base = wire(keys.base), wire(keys.own_base)
    async for page in pages(line.ask, keys.base):
        names = [name for name in page if is_of_a_queue(name) and base + name not in once]
        others = set() if keys.hash_tag else await foreign(line.ask, keys, names)
        yield [base + name for name in names if name not in others]
    async for page in pages(line.ask, keys.own_base):
        yield [own_base + name for name in page if keys.is_one_of_many(name)]


async def remove_orphans(line: Line, *, jobs: bool, on_progress: OnProgress) -> int:
    """Removes what is left of jobs that are gone; and, if asked for, the jobs that stand in no state. Gives of how many."""
    removed = 0

    async def remove(seen: Sequence[tuple[bytes, bytes]]) -> None:
        nonlocal removed
        for start in range(0, len(seen), _STEP):
            args = [one for pair in seen[start : start + _STEP] for one in pair]
            _, count = await line.call("removeOrphans-8", args)
            removed += count
            on_progress(removed)

    def tell(_: int) -> None:
        on_progress(removed)

    if jobs:
        way = Way.of_line(line)
        _, names = await nowhere(way, tell)
        async for some in lost(way, names):
            # A hash that is no whole job, and looks like a run of a schedule, may be a schedule.
            await remove([(job_id, mark) for job_id, mark in some if mark or not job_id.startswith(b"repeat:")])
    async for page in pages(line.ask, line.keys.base):
        owners = {name: job_id for name in page if (job_id := owner(name)) is not None}
        for name in await foreign(line.ask, line.keys, owners) | await _schedules(line, owners):
            del owners[name]
        await remove([(job_id, _GONE) for job_id in {*owners.values()}])
        on_progress(removed)
    return removed


async def _schedules(line: Line, names: Iterable[bytes]) -> set[bytes]:
    """Those that are definitions of schedules, though they look like what belongs to a run of one."""
    asked = [name for name in names if name.startswith(b"repeat:")]
    if not asked:
        return set()
    ids = [name.removeprefix(b"repeat:") for name in asked]
    scores = await line.ask("ZMSCORE", line.keys.resolve("schedulers"), *ids)
    assert isinstance(scores, list)
    return {name for name, score in zip(asked, scores, strict=True) if score is not None}


async def trim_events(line: Line, most: int, on_progress: OnProgress) -> int:
    """Cuts the event log to about its latest entries, in steps. Gives how many were removed."""
    removed, count = 0, 1
    while count:
        _, count = await line.call("trimEvents-2", (str(most),))
        removed += count
        on_progress(removed)
    return removed


async def limit_events(line: Line, *, count: int | None, size: int | None) -> None:
    """Sets how many entries the event log holds, and how many bytes; None leaves as it is, 0 takes away what was set."""
    fields = (("opts.maxLenEvents", count), ("maxEventBytes", size))
    await line.call(
        "limitEvents-2", [one for name, most in fields if most is not None for one in (name, str(most or ""))]
    )
