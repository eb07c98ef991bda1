"""``queue.admin``: what is done to many jobs at once. Each verb goes in steps, so that others get their turn in between."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from echomq._store import admin, control, heal
from echomq._store.home import Home
from echomq._telemetry import traced
from echomq.errors import InvalidOption
from echomq.models import Healed
from echomq.options import (
    MAX_COUNT,
    Duration,
    OnProgress,
    check_on_progress,
    check_truth,
    check_whole,
    shown,
    to_seconds,
)

Ended: TypeAlias = Literal["failed", "completed"]
"""States of jobs that can be run again."""

Cleanable: TypeAlias = Literal["completed", "failed", "delayed", "prioritized", "waiting", "active"]
"""States that can be cleaned."""

_ENDED: Final = ("failed", "completed")
_CLEANABLE: Final = ("completed", "failed", "delayed", "prioritized", "waiting", "active")


class QueueAdmin:
    """The verbs of ``queue.admin``.

    A verb that is cut short, by a cancellation or by a server that goes away, has done a part of its work, and leaves nothing
    half done: call it again for the rest. Each verb that goes in steps takes ``on_progress``, a plain function: it is called
    after each step with how much has been done so far (at times with the same number again), and what it raises ends the verb
    after that step, and comes out of it.

    Example:
        >>> await queue.admin.retry_all(on_progress=lambda done: print(done))
        17
    """

    def __init__(self, home: Home) -> None:
        self._home = home

    @traced("retryJobs", "producer")
    async def retry_all(self, state: Ended = "failed", *, on_progress: OnProgress | None = None) -> int:
        """Lets all jobs run again that have failed (or completed) until now, the oldest first. Gives how many.

        Each goes to the end of the line, or of its priority's. Attempts are counted on, as with ``Job.retry``, and
        deduplication ids are not held again.

        Raises:
            InvalidOption: there is no such state, or its jobs have not ended.
            ServerUnavailable: no further part was carried out. ConnectionLost: of one part that is not known.

        Example:
            >>> await queue.admin.retry_all()
            17
        """
        if state not in _ENDED:
            raise InvalidOption(f"state {shown(state)}: must be one of {', '.join(_ENDED)}")
        return await control.move_all(self._home.line, state, check_on_progress(on_progress))

    @traced("promoteJobs")
    async def promote_all(self, *, on_progress: OnProgress | None = None) -> int:
        """Lets all delayed jobs run now, in the order of their times, but not the next runs of schedules. Gives how many.

        Each that is delayed when it begins is promoted once; what waits for its next attempt after that, or is added meanwhile,
        stays.

        (A schedule goes on from the run that waits: brought forward, it would be missing at its own time. ``run_now`` of a
        ``JobScheduler`` runs one besides.)

        Raises:
            ServerUnavailable: no further part was carried out. ConnectionLost: of one part that is not known.

        Example:
            >>> await queue.admin.promote_all()
            3
        """
        return await control.move_all(self._home.line, "delayed", check_on_progress(on_progress))

    @traced("drain")
    async def drain(self, *, delayed: bool = False, on_progress: OnProgress | None = None) -> int:
        """Removes the jobs that wait to be run, those with a priority too. Gives how many.

        What runs goes on, what has ended stays, and so does the next run of each schedule and what is added meanwhile. No event
        tells of it; whoever waits for the result of such a job hears within half a minute that it is gone.

        Args:
            delayed: remove those too that wait for their time.
            on_progress: is told how many are gone.

        Raises:
            ServerUnavailable: no further part was carried out. ConnectionLost: of one part that is not known.

        Example:
            >>> await queue.admin.drain(delayed=True)
            240
        """
        check_truth(delayed, "delayed")
        return await control.drain(self._home.line, delayed=delayed, on_progress=check_on_progress(on_progress))

    @traced("clean")
    async def clean(
        self,
        state: Cleanable,
        older_than: Duration,
        limit: int | None = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> list[str]:
        """Removes jobs of a state that are older than this. Gives their ids: about 100 bytes of memory for each.

        The age of a job that has ended counts from its end; of one that waits, from when it was last in a worker's hands, or
        was made. Of active jobs only those are removed whose lock has gone; and never the next run of a schedule. Jobs that wait
        for their children go with ``job.remove()``, which takes the children along.

        Args:
            state: completed, failed, delayed, prioritized, waiting or active.
            older_than: seconds, or a ``timedelta``; 0 for all that are there now.
            limit: at most so many, the oldest of their line or the first of their set; left out, all.
            on_progress: is told how many are gone.

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
        return await control.clean(self._home.line, state, older_than, limit, check_on_progress(on_progress))

    @traced("heal")
    async def heal(self, *, on_progress: OnProgress | None = None) -> Healed:
        """Puts back jobs that stand in no state although they are there: no worker would ever come upon them.

        No program leaves such jobs but BullMQ 5, when it pauses or resumes beside others, and a hand that deletes a list. Beside
        a BullMQ 5 the workers heal by themselves every few minutes; this is for whoever does not want to wait, or had none
        running. It looks at every job of the queue, at most 1,000 at a time, while the queue goes on.

        One that had ended is completed or failed again, one with children that are pending waits for them, one whose time is
        still to come is delayed; the others go to the front of the line, the oldest first, or of their priority's. One that a
        worker still has a lock of is left for the next time.

        Args:
            on_progress: is told how many names have been looked at.

        Raises:
            ServerUnavailable: no further part was carried out. ConnectionLost: of one part that is not known.

        Example:
            >>> (await queue.admin.heal()).put_back
            {'waiting': ['18', '21']}
        """
        return await heal.heal(heal.Way.of_line(self._home.line), check_on_progress(on_progress))

    @traced("obliterate")
    async def obliterate(self, *, force: bool = False, on_progress: OnProgress | None = None) -> int:
        """Removes the queue with all that belongs to it, so that no key of it is left. Gives how many jobs there were.

        It pauses the queue first. What is added meanwhile goes too, until the last step; with that the queue is no longer paused,
        and may be used anew. Parents in other queues no longer wait for jobs of this one; children in other queues stay. The
        queue of its dead letters is a queue of its own: ``queue.dead_letter.admin.obliterate()``.

        Workers may go on running: a handler whose job is gone is cancelled, and its end changes nothing. What a worker or a
        producer that is still there writes down for itself (the record of its last call) comes anew, and expires after an hour.

        Cut short, it leaves the queue paused, with a part of its jobs: call it again. (Or keep the rest: ``resume()``, and
        ``remove_orphans()`` for the logs and the like of those that are gone.)

        Args:
            force: also while jobs are being run, or outcomes are on their way to a results queue, which are dropped then.
            on_progress: is told how many jobs are gone.

        Raises:
            JobLocked: jobs are being run. The queue is paused now, so that none begins; nothing else has changed.
            StateError: outcomes are still on their way to a results queue (``queue.outbox_size()``), with the same effect; or
                somebody has resumed the queue meanwhile.
            ServerUnavailable: no further part was carried out. ConnectionLost: of one part that is not known.

        Example:
            >>> await queue.admin.obliterate()
            1204
        """
        check_truth(force, "force")
        return await admin.obliterate(self._home.line, force=force, on_progress=check_on_progress(on_progress))

    @traced("removeOrphanedJobs")
    async def remove_orphans(self, *, jobs: bool = False, on_progress: OnProgress | None = None) -> int:
        """Removes what was left behind by jobs that are gone: logs, lists of children, locks without an expiry.

        No program leaves such, but a hand that deletes a hash does, or an eviction. It looks at every key of the queue, at most
        1,000 at a time, while the queue goes on. No job is removed, also none that stands in no state: ``heal()`` puts it back.

        Args:
            jobs: remove those jobs too, instead of putting them back. There is no way to get them again.
            on_progress: is told of how many jobs something was removed.

        Returns:
            Of how many jobs, or ids that had been jobs, something was removed.

        Raises:
            ServerUnavailable: no further part was carried out. ConnectionLost: of one part that is not known.

        Example:
            >>> await queue.admin.remove_orphans()
            0
        """
        check_truth(jobs, "jobs")
        return await admin.remove_orphans(self._home.line, jobs=jobs, on_progress=check_on_progress(on_progress))

    @traced("trimEvents")
    async def trim_events(self, max_len: int, *, on_progress: OnProgress | None = None) -> int:
        """Cuts the event log to about its latest ``max_len`` entries, now and once. Gives how many were removed.

        The server removes whole blocks of entries (100 by default), so up to as many more may stay.

        Raises:
            InvalidOption: it is no whole number of at least 0.
            ServerUnavailable: no further part was carried out. ConnectionLost: of one part that is not known.

        Example:
            >>> await queue.admin.trim_events(1000)
            8900
        """
        check_whole(max_len, "max_len", least=0)
        return await admin.trim_events(self._home.line, max_len, check_on_progress(on_progress))

    @traced("limitEvents")
    async def limit_events(self, *, count: int | None = None, bytes: int | None = None) -> None:
        """Sets how long the event log of this queue may grow; whatever writes an event from then on keeps to it.

        A BullMQ ``Queue`` of Node sets the count anew each time that it is made: to 10,000, or to its ``streams.events.maxLen``.

        Args:
            count: about so many entries; 0 for the default of 10,000; left out, as it is.
            bytes: about so many bytes, by what scripts of EchoMQ write; 0 for the default; left out, as it is.

        Raises:
            InvalidOption: neither is given, or one is no whole number of at least 0.
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.

        Example:
            >>> await queue.admin.limit_events(count=50_000, bytes=16 * 2**20)
        """
        if count is None and bytes is None:
            raise InvalidOption("limit_events() without a limit: give count, or bytes, or both")
        if count is not None:
            check_whole(count, "count", least=0, most=MAX_COUNT)
        if bytes is not None:
            check_whole(bytes, "bytes", least=0, most=MAX_COUNT)
        await admin.limit_events(self._home.line, count=count, size=bytes)
