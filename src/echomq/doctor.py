"""The doctor: looks at a server and its queues, says what is not as it should be, and repairs what it is told to.

See ``docs/doctor.md`` for what each finding means, and what its repair does.
"""

from __future__ import annotations

from collections.abc import Callable

from echomq._store import doctor as store
from echomq.connection import Connection
from echomq.errors import InvalidOption
from echomq.findings import KINDS, Finding, QueueFacts, Report, ServerFacts, Severity
from echomq.options import Duration, shown, to_seconds

__all__ = ["KINDS", "Doctor", "Finding", "QueueFacts", "Report", "ServerFacts", "Severity"]


class Doctor:
    """Looks at the queues of a server. Making one connects to nothing.

    It reads in small steps while the queues go on, and changes nothing but what ``fix`` is given. What it suspects it looks at
    once more at one moment, so that a job which is just moving is no finding.

    Args:
        connection: a ``Connection`` or a URL; left out, ``ECHOMQ_URL``.
        prefix, hash_tag: as for ``Queue``.

    Raises:
        InvalidOption: an argument breaks a rule.

    Example:
        >>> doctor = Doctor("redis://localhost:6379/0")
        >>> report = await doctor.examine("orders")
        >>> for finding in report.findings:
        ...     print(finding.kind, finding.text)
        ...     if finding.fixable:
        ...         await doctor.fix(finding)
    """

    def __init__(
        self, connection: Connection | str | None = None, *, prefix: str = "emq", hash_tag: bool | None = None
    ) -> None:
        self._connection = Connection.of(connection)
        self._prefix = prefix
        self._hash_tag = hash_tag

    async def examine(
        self,
        *queues: str,
        oldest_waiting: Duration | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> Report:
        """Looks at the server and at these queues, each with its dead letters; without names, at all that there are.

        It takes 10 to 20 seconds for a million jobs, and some 100 bytes of memory for each job that waits.

        Args:
            queues: their names.
            oldest_waiting: seconds that a job may wait for its run; what waits longer is a finding.
            on_progress: is called now and then with the number of jobs looked at so far.

        Raises:
            InvalidOption: a name breaks a rule.
            ServerUnavailable: the server is away.

        Example:
            >>> report = await doctor.examine("orders", oldest_waiting=600)
            >>> [finding.kind for finding in report.findings]
            ['ghost-id']
        """
        most = None if oldest_waiting is None else to_seconds(oldest_waiting, "oldest_waiting")
        return await store.Round(self._connection, self._prefix, self._hash_tag, most, on_progress).examine(queues)

    async def fix(self, finding: Finding) -> int:
        """Repairs what was found. It looks again first: if it is not so any more, nothing is changed.

        Returns:
            How many jobs, entries or keys it put right; 0 if there was nothing to put right any more.

        Raises:
            InvalidOption: no repair is known for findings of this kind; the remedy says what to do.
            JobLocked: a worker runs the job: wait for its end.
            BrokenKey: a key beside it cannot be read; nothing was changed.
            ServerUnavailable: it was not carried out, or only a part of its steps.

        Example:
            >>> [await doctor.fix(finding) for finding in report.findings if finding.fixable]
            [1]
        """
        if not isinstance(finding, Finding):
            raise InvalidOption(f"finding={shown(finding)}: must be a Finding of a report")
        return await store.fix(self._connection, self._prefix, self._hash_tag, finding)
