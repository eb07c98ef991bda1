"""Slots that several workers of one event loop share: whose is the next one that is free.

By weight, what counts is the time for which a worker has held slots, divided by its weight: the one with the least gets the next
slot. So a queue of long jobs does not push one of short jobs aside, and over time each has its share, if it has work for it.
By order, a worker gets what those before it do not want.

Only workers that want jobs count: one whose queue is empty, paused or limited, or whose server does not answer, keeps nobody
waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

_FIRST_GUESS = 0.05
"""Seconds that a slot is taken for, while nothing is known of a queue's jobs."""

_REMEMBERED = 200.0
"""Ends of jobs after which the older half of what is known counts no more."""

_PATIENCE = 0.25
"""Seconds for which a slot is kept for a worker whose call has not been answered yet."""


class Share:
    """One worker's part in a pool.

    Args:
        weight: its share of the slots' time, relative to the others'.
        taken: says how many slots it has taken.
        wants: whether it would take a job now, as far as it knows.
        unanswered_since: since when it waits for the answer to a fetch, or None.
        wake: called when there is a slot for it.
    """

    def __init__(
        self,
        pool: Pool,
        weight: int,
        taken: Callable[[], int],
        wants: Callable[[], bool],
        unanswered_since: Callable[[], float | None],
        wake: Callable[[], None],
    ) -> None:
        self._pool = pool
        self.weight = weight
        self.taken = taken
        self.wake = wake
        self.served: float = 0.0  # slot-seconds, divided by the weight
        self._wants = wants
        self._unanswered_since = unanswered_since
        self._held = 0
        self._since = pool.now()
        self._worked = 0.0
        self._started = 0.0

    def grant(self, wanted: int) -> int:
        """How many of so many slots it may take now."""
        return self._pool.grant(self, wanted)

    def started(self, jobs: int) -> None:
        """So many have come."""
        self._started += jobs

    def changed(self) -> None:
        """It has taken or freed slots, or wants jobs no more: others may have theirs."""
        self._pool.deal_soon()

    def leave(self) -> None:
        """Takes part no more."""
        self._pool.leave(self)

    # -- for the pool ----------------------------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Brings the account up to date."""
        spent = self._held * (now - self._since)
        self.served += spent / self.weight
        self._worked += spent
        self._since, self._held = now, self.taken()
        ended = self._started - self._held
        if ended > _REMEMBERED:
            self._worked /= 2
            self._started -= ended / 2

    def takes(self, slots: int) -> None:
        """So many slots are its own from now on, though it does not count them yet."""
        self._held += slots

    @property
    def step(self) -> float:
        """What one more job adds to its account, most likely."""
        ended = max(self._started - self._held, 0.0)
        return (self._worked + _FIRST_GUESS) / (ended + 1) / self.weight

    def counts(self, now: float) -> bool:
        """Whether a slot is to be kept for it."""
        if not self._wants():
            return False
        since = self._unanswered_since()
        return since is None or now - since < _PATIENCE


class Pool:
    """The slots.

    Args:
        size: how many there are.
        weights: by the name of a queue; 1 where it is not named.
        order: names of queues, the first comes first; None: by weight.
    """

    def __init__(self, size: int, weights: Mapping[str, int], order: Sequence[str] | None) -> None:
        self.size = size
        self._weights = weights
        self._order = order
        self._shares: list[tuple[int, Share]] = []
        self._loop = asyncio.get_running_loop()
        self._dealing: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None

    def now(self) -> float:
        """Seconds, on the event loop's clock."""
        return self._loop.time()

    @property
    def free(self) -> int:
        """How many are free."""
        return self.size - sum(share.taken() for _, share in self._shares)

    def join(
        self,
        queue: str,
        taken: Callable[[], int],
        wants: Callable[[], bool],
        unanswered_since: Callable[[], float | None],
        wake: Callable[[], None],
    ) -> Share:
        """A worker of this queue takes part."""
        rank = 0 if self._order is None else self._order.index(queue)
        share = Share(self, self._weights.get(queue, 1), taken, wants, unanswered_since, wake)
        self._shares.append((rank, share))
        self._shares.sort(key=lambda pair: (pair[0], -pair[1].weight))
        return share

    def leave(self, share: Share) -> None:
        """A worker takes part no more."""
        self._shares = [pair for pair in self._shares if pair[1] is not share]
        self.deal_soon()

    def grant(self, share: Share, wanted: int) -> int:
        """How many of so many slots this one may take now."""
        others = self._who_counts(besides=share)
        free = self.free
        if free <= 0 or wanted <= 0:
            return 0
        granted = self._dealt(free, others, share, wanted) if others else min(wanted, free)
        if granted < min(wanted, free):
            self._look_later()  # the rest is kept for others, who may not come for it
        share.takes(granted)
        return granted

    def deal_soon(self) -> None:
        """Wakes those for whom there is a slot, once the caller is through."""
        if self._dealing is None:
            self._dealing = self._loop.call_soon(self._deal)

    def _deal(self) -> None:
        self._dealing = None
        counting = self._who_counts()
        free = self.free
        if free <= 0:
            return
        for share in counting:
            if self._dealt(free, [one for one in counting if one is not share], share, 1):
                share.wake()
            else:
                self._look_later()

    def _look_later(self) -> None:
        if self._later is None:
            self._later = self._loop.call_later(_PATIENCE, self._look_again)

    def _look_again(self) -> None:
        self._later = None
        self._deal()

    def _who_counts(self, besides: Share | None = None) -> list[Share]:
        now = self._loop.time()
        for _, share in self._shares:
            share.settle(now)
        return [share for _, share in self._shares if share is not besides and share.counts(now)]

    def _dealt(self, free: int, others: Sequence[Share], share: Share, wanted: int) -> int:
        """How many of the free slots fall to ``share``, at most as many as it wants."""
        if self._order is not None:
            places = [one for _, one in self._shares]
            at = places.index(share)
            return 0 if any(places.index(one) < at for one in others) else min(wanted, free)
        everybody = [one for _, one in self._shares if one is share or one in others]
        # Whoever has had less than others, because it had no work, is not paid back for more than what two jobs may take.
        foremost, most = max(one.served for one in everybody), 2 * max(one.step for one in everybody)
        accounts = []
        for one in everybody:
            one.served = max(one.served, foremost - most)
            accounts.append([one.served + one.step * one.taken(), one.step])
        mine = everybody.index(share)
        granted = 0
        for _ in range(free):
            least = min(range(len(accounts)), key=lambda at: accounts[at][0])
            accounts[least][0] += accounts[least][1]
            if least == mine:
                granted += 1
                if granted == wanted:
                    break
        return granted
