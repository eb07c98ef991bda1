"""Reading: a job with its state, how many jobs there are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from echomq._store.codec import StoredJob, id_out, state_in, state_out
from echomq._store.line import Line
from echomq.models import JobState


async def job(line: Line, job_id: str) -> tuple[StoredJob, JobState | None] | None:
    """A job as it is at this moment, or None."""
    reply = await line.read("getJob-8", (id_out(job_id),))
    assert isinstance(reply, list)
    state, flat = reply
    if not flat:
        return None
    return StoredJob.from_reply(id_out(job_id), flat), state_in(state)  # type: ignore[arg-type]


async def counts(line: Line, states: Sequence[JobState]) -> dict[JobState, int]:
    """How many jobs are in each of these states."""
    reply = await line.read("getCounts-8", [state_out(state) for state in states])
    assert isinstance(reply, list)
    return dict(zip(states, reply, strict=True))  # type: ignore[arg-type]


def as_stored(counts: Mapping[JobState, int]) -> dict[str, int]:
    """The same with the protocol's names of the states."""
    return {state_out(state): count for state, count in counts.items()}


_PAGE = 100


async def jobs(line: Line, state: JobState, *, newest_first: bool) -> AsyncIterator[StoredJob]:
    """The jobs of a state, page by page, as they are when their page is read."""
    if state == "waiting":
        places = ["wait", "paused"] if newest_first else ["paused", "wait"]
    else:
        places = [state_out(state)]
    for place in places:
        start, passed = 0, 1
        while passed:
            args = (place, str(start), str(_PAGE), "1" if newest_first else "")
            reply = await line.read("getRanges-8", args)
            assert isinstance(reply, list)
            passed = reply[0]  # type: ignore[assignment]
            start += passed
            for at in range(1, len(reply), 2):
                yield StoredJob.from_reply(reply[at], reply[at + 1])  # type: ignore[arg-type]


async def is_paused(line: Line) -> bool:
    """Whether the queue is paused."""
    return await line.ask("HEXISTS", line.keys.key("meta"), "paused") == 1
