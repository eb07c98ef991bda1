"""How the workers of a process do, as it tells its supervisor and whoever asks; and what is to be thought of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import msgspec

from echomq import Worker

AWAY: Final = 5.0
"""Seconds for which the server may be away before a process is not ready any more."""

SILENT: Final = 10.0
"""Seconds for which a process may tell its supervisor nothing: a frozen one cannot, nor one that is starved."""


class WorkerState(msgspec.Struct, frozen=True):
    """One worker.

    Attributes:
        queue, name: of the worker.
        server: where its queue is, in a few words, never with a password.
        ready: whether it has talked to its server, and takes jobs or would.
        held_up: whether its event loop has not answered for longer than a lock lasts.
        paused: whether it was told to take no jobs.
        slots, running, loop_lag, since_fetch, away_for: as ``Worker.stats`` has them.
    """

    queue: str
    name: str
    server: str
    ready: bool
    held_up: bool
    paused: bool
    slots: int
    running: int
    loop_lag: float
    since_fetch: float | None
    away_for: float


class ProcessState(msgspec.Struct, frozen=True):
    """One process and its workers.

    Attributes:
        pid: its process id.
        stopping: whether it was told to stop.
        workers: its workers.
        heard: seconds since it told that; 0 where it is asked itself.
        gave_up: whether it ends because of what a new process would meet as well: a wrong setting, or an app that cannot start.
    """

    pid: int
    stopping: bool
    workers: list[WorkerState]
    heard: float = 0.0
    gave_up: bool = False

    @property
    def ready(self) -> bool:
        """Whether all of its workers are."""
        return not self.stopping and all(one.ready for one in self.workers)

    @property
    def held_up(self) -> bool:
        """Whether one of its event loops is."""
        return any(one.held_up for one in self.workers)


def look_at(workers: Sequence[Worker], *, stopping: bool) -> ProcessState:
    """This process as it is now. For any thread."""
    return ProcessState(os.getpid(), stopping, [_of(one) for one in workers])


def _of(worker: Worker) -> WorkerState:
    stats, runs = worker.stats, worker.is_running
    was_ready = runs and stats.since_fetch is not None
    return WorkerState(
        queue=worker.queue,
        name=worker.name,
        server=worker.connection.where,
        ready=was_ready,
        held_up=was_ready and not worker.is_healthy,
        paused=worker.is_paused,
        slots=stats.slots,
        running=stats.running,
        loop_lag=round(stats.loop_lag, 3),
        since_fetch=None if stats.since_fetch is None else round(stats.since_fetch, 3),
        away_for=round(stats.away_for, 3),
    )


def not_alive(processes: Sequence[ProcessState]) -> list[str]:
    """Why somebody should start it anew; nothing if it lives. That its server is away is no reason."""
    reasons = []
    for process in processes:
        if process.heard > SILENT:
            reasons.append(f"process {process.pid} has told nothing for {process.heard:.0f} s")
        reasons += [
            f"the event loop of {one.name} (queue {one.queue}) has not answered for longer than a lock lasts"
            for one in process.workers
            if one.held_up
        ]
    return reasons


def not_ready(processes: Sequence[ProcessState], wanted: int) -> list[str]:
    """Why it takes no jobs, or not as many as it should; nothing if it does.

    Args:
        processes: those that there are.
        wanted: how many there should be.
    """
    reasons = not_alive(processes)
    if len(processes) < wanted:
        reasons.append(f"{wanted - len(processes)} of {wanted} processes are starting")
    for process in processes:
        if process.stopping:
            reasons.append(f"process {process.pid} stops")
            continue
        for one in process.workers:
            if one.away_for > AWAY:
                reasons.append(f"the server of queue {one.queue} has been away for {one.away_for:.0f} s")
            elif not one.ready:
                reasons.append(f"{one.name} (queue {one.queue}) is starting")
    return reasons
