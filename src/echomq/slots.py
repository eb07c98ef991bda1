"""``SharedSlots``: slots that workers of several queues share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

from echomq._worker.slots import Pool
from echomq.errors import InvalidOption
from echomq.options import check_whole, shown

_HEAVIEST = 1_000


class SharedSlots:
    """Slots that the workers of several queues of one event loop share, in place of a ``concurrency`` of each.

    By weight, each queue that has work gets its share of the slots' time; what one does not need, the others use. None
    starves. By strict order, a queue gets what those before it leave: while they have work for all slots, it waits.

    A queue that is empty, paused or limited takes no slot, and keeps no other waiting.

    Args:
        size: how many jobs may run at once, of all queues together.
        weights: whole numbers from 1 to 1,000 by the name of a queue; 1 where a queue is not named.
        strict: the names of the queues, the first comes first. Not together with ``weights``.

    Raises:
        InvalidOption: an argument breaks a rule.

    Example:
        >>> slots = SharedSlots(20, weights={"high": 3, "low": 1})
        >>> async with app.worker("high", slots=slots), app.worker("low", slots=slots):
        ...     await stopped.wait()
    """

    def __init__(
        self, size: int, *, weights: Mapping[str, int] | None = None, strict: Sequence[str] | None = None
    ) -> None:
        self._size = check_whole(size, "size", least=1, most=100_000)
        self._weights = _checked_weights(weights)
        self._order = _checked_order(strict)
        if weights and strict is not None:
            raise InvalidOption(f"weights={shown(weights)}, strict={shown(strict)}: give one of them")
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, Pool] = WeakKeyDictionary()

    def __repr__(self) -> str:
        how = f"strict={self._order!r}" if self._order is not None else f"weights={dict(self._weights)!r}"
        return f"SharedSlots({self._size}, {how})"

    @property
    def size(self) -> int:
        """How many there are."""
        return self._size

    def check(self, queue: str) -> None:
        """Not for users of EchoMQ. Refuses a queue that has no place here."""
        if self._order is not None and queue not in self._order:
            raise InvalidOption(f"slots={self!r}: has no place for the queue {queue!r}; add its name to strict")

    def pool(self) -> Pool:
        """Not for users of EchoMQ. The slots of the event loop that runs here."""
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            pool = self._pools[loop] = Pool(self._size, self._weights, self._order)
        return pool


def _checked_weights(weights: Mapping[str, int] | None) -> Mapping[str, int]:
    given: object = {} if weights is None else weights
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise InvalidOption(
            f"weights={shown(given)}: must be a mapping of names to numbers, such as {{'high': 3, 'low': 1}}"
        )
    for name, weight in given.items():
        check_whole(weight, f"weight of {name!r}", least=1, most=_HEAVIEST)
    return dict(given)


def _checked_order(order: Sequence[str] | None) -> Sequence[str] | None:
    if order is None:
        return None
    if isinstance(order, str) or not isinstance(order, Sequence) or not all(isinstance(name, str) for name in order):
        raise InvalidOption(f"strict={shown(order)}: must be the names of the queues in order, such as ('high', 'low')")
    if not order or len(set(order)) != len(order):
        raise InvalidOption(f"strict={shown(order)}: must name each queue once, and at least one")
    return tuple(order)
