"""``queue.admin``: what is done to many jobs at once. Each verb goes in steps, so that others get their turn in between."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from echomq._store import control, heal
from echomq._store.home import Home
from echomq.errors import InvalidOption
from echomq.models import Healed
from echomq.options import Duration, check_truth, check_whole, shown, to_seconds

Ended: TypeAlias = Literal["failed", "completed"]
"""States of jobs that can be run again."""

Cleanable: TypeAlias = Literal["completed", "failed", "delayed", "prioritized", "waiting", "active"]
"""States that can be cleaned."""

_ENDED: Final = ("failed", "completed")
_CLEANABLE: Final = ("completed", "failed", "delayed", "prioritized", "waiting", "active")


class QueueAdmin:
    """The verbs of ``queue.admin``.

    A verb that is cut short, by a cancellation or by a server that goes away, has done a part of its work, and leaves nothing
    half done: call it again for the rest.

    Example:
        >>> await queue.admin.retry_all()
        17
    """

    def __init__(self, home: Home) -> None:
        self._home = home

    async def retry_all(self, state: Ended = "failed") -> int:
        """Lets all jobs run again that have failed (or completed) until now, the oldest first. Gives how many.

        Each goes to the end of the line, or of its priority's. Attempts are counted on, as with ``Job.retry``, and
        deduplication ids are not held again.

        Raises:
            InvalidOption: there is no such state, or its jobs have not ended.
            ServerUnavailable: no further part was carried out. ConnectionLost: of one part that is not known.
        """
        if state not in _ENDED:
            raise InvalidOption(f"state {shown(state)}: must be one of {', '.join(_ENDED)}")
        return await control.move_all(self._home.line, state)

    async def promote_all(self) -> int:
        """Lets all delayed jobs run now, in the order of their times, but not the next runs of schedules. Gives how many.

        Each that is delayed when it begins is promoted once; what waits for its next attempt after that, or is added meanwhile,
        stays.

        (A schedule goes on from the run that waits: brought forward, it would be missing at its own time. ``run_now`` of a
        ``JobScheduler`` runs one besides.)

        Raises:
            ServerUnavailable: no further part was carried out. ConnectionLost: of one part that is not known.
        """
        return await control.move_all(self._home.line, "delayed")

    async def drain(self, *, delayed: bool = False) -> int:
        """Removes the jobs that wait to be run, those with a priority too. Gives how many.

        What runs goes on, what has ended stays, and so does the next run of each schedule and what is added meanwhile. No event
        tells of it; whoever waits for the result of such a job hears within half a minute that it is gone.

        Args:
            delayed: remove those too that wait for their time.

        Raises:
            ServerUnavailable: no further part was carried out. ConnectionLost: of one part that is not known.
        """
        check_truth(delayed, "delayed")
        return await control.drain(self._home.line, delayed=delayed)

    async def clean(self, state: Cleanable, older_than: Duration, limit: int | None = None) -> list[str]:
        """Removes jobs of a state that are older than this. Gives their ids.

        The age of a job that has ended counts from its end; of one that waits, from when it was last in a worker's hands, or
        was made. Of active jobs only those are removed whose lock has gone; and never the next run of a schedule.

        Args:
            state: completed, failed, delayed, prioritized, waiting or active.
            older_than: seconds, or a ``timedelta``; 0 for all that are there now.
            limit: at most so many, the oldest of their line or the first of their set; left out, all.

        Raises:
            InvalidOption: an argument breaks a rule.
            ServerUnavailable: no further part was carried out. ConnectionLost: of one part that is not known.

        Example:
            >>> await queue.admin.clean("failed", older_than=timedelta(days=7))
            ['18', '21']
        """
        if state not in _CLEANABLE:
            raise InvalidOption(f"state {shown(state)}: must be one of {', '.join(_CLEANABLE)}")
        to_seconds(older_than, "older_than")
        if limit is not None:
            check_whole(limit, "limit", least=1)
        return await control.clean(self._home.line, state, older_than, limit)

    async def heal(self) -> Healed:
        """Puts back jobs that stand in no state although they are there: no worker would ever come upon them.

        No program leaves such jobs but BullMQ 5, when it pauses or resumes beside others, and a hand that deletes a list. Beside
        a BullMQ 5 the workers heal by themselves every few minutes; this is for whoever does not want to wait, or had none
        running. It looks at every job of the queue, at most 1,000 at a time, while the queue goes on.

        One that had ended is completed or failed again, one with children that are pending waits for them, one whose time is
        still to come is delayed; the others go to the front of the line, the oldest first, or of their priority's. One that a
        worker still has a lock of is left for the next time.

        Raises:
            ServerUnavailable: no further part was carried out. ConnectionLost: of one part that is not known.

        Example:
            >>> (await queue.admin.heal()).put_back
            {'waiting': ['18', '21']}
        """
        return await heal.heal(heal.Way.of_line(self._home.line))
