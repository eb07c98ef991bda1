"""What a worker tells telemetry of its runs. A worker without telemetry has none of this."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from echomq._store.codec import carried
from echomq._store.finish import Completed, Delayed, Failed, GivenBack, Outcome, RateLimited, Retry, Skipped
from echomq._telemetry import JOB_ID, JOB_NAME, STATE, Guard, RunEnd, Spans, Value
from echomq._worker.held import Held

Run = Callable[[Held], Coroutine[Any, Any, Outcome | None]]
Call = Callable[[Held], Awaitable[Any]]

_ENDS: Final[dict[type[Outcome], RunEnd]] = {
    Completed: "completed",
    Skipped: "completed",
    Failed: "failed",
    Retry: "retried",
    Delayed: "delayed",
    RateLimited: "waiting",
    GivenBack: "waiting",
}


class Tracer:
    """Makes an operation of each run. The handler is called inside of it, whatever thread that happens in.

    Args:
        queue: its name, as other programs know it.
        worker: the worker's name.
    """

    def __init__(self, guard: Guard, queue: str, worker: str) -> None:
        self._guard = guard
        self._queue = queue
        self._worker: dict[str, Value] = {"bullmq.worker.name": worker, "bullmq.worker.id": uuid.uuid4().hex}
        self._raised: dict[Held, BaseException] = {}

    def calls(self, call: Call) -> Call:
        """The same, and what a handler raises is kept for the end of its run."""

        async def kept(held: Held) -> Any:
            try:
                return await call(held)
            except BaseException as error:
                self._raised[held] = error
                raise

        return kept

    def runs(self, run: Run) -> Run:
        """The same, as an operation."""

        async def traced(held: Held) -> Outcome | None:
            job = held.job
            about: dict[str, Value] = {
                JOB_ID: job.id,
                JOB_NAME: job.name,
                "bullmq.job.processed.timestamp": job.number(b"processedOn"),
                **self._worker,
            }
            with self._guard.span("process", self._queue, "consumer", about, carried(job)) as span:
                began = time.monotonic()
                try:
                    outcome = await run(held)
                finally:
                    error = self._raised.pop(held, None)
                self._tell(span, held, outcome, error, time.monotonic() - began)
                return outcome

        return traced

    def _tell(
        self, span: Spans, held: Held, outcome: Outcome | None, error: BaseException | None, seconds: float
    ) -> None:
        span.set({"bullmq.job.attempt_finished_timestamp": int(time.time() * 1000)})
        if outcome is None:
            span.error("the job was another worker's by then, or given back: this run counts for nothing", error)
            return
        is_cancelled = isinstance(outcome, Failed) and outcome.failure_kind == "cancelled"
        end: RunEnd = "cancelled" if is_cancelled else _ENDS[type(outcome)]
        state = (
            "failed"
            if is_cancelled
            else end
            if not isinstance(outcome, Retry)
            else "delayed"
            if outcome.delay
            else "waiting"
        )
        counts = isinstance(outcome, (Completed, Failed, Retry))
        span.set({STATE: state, "bullmq.job.attempts.made": held.job.attempts_made + counts})
        if isinstance(outcome, Completed):
            span.set({"bullmq.job.result": outcome.value.decode("utf-8", "replace")})
        elif isinstance(outcome, (Failed, Retry)):
            span.set({"bullmq.job.failed.reason": outcome.reason})
            span.error(outcome.reason, error)
        self._guard.run_ended(self._queue, held.job.name, end, seconds)
