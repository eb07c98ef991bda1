"""How many workers there are: one that has lost its connection, or its life, is listed for a while, and is none."""

from __future__ import annotations

from collections.abc import Iterable

from echomq.models import WorkerInfo


def connected(workers: Iterable[WorkerInfo]) -> int:
    """How many work, as far as the server tells."""
    return sum(worker.is_connected is not False for worker in workers)


def in_words(workers: list[WorkerInfo], none: str) -> str:
    """How many work, and how many are not connected."""
    there = connected(workers)
    lost = len(workers) - there
    return f"{there or none}{f' ({lost} not connected)' if lost else ''}"
