"""The ``echomq`` logger. Payloads are never logged; a record about a job carries ``job_id``, ``job_name`` and ``queue``."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any, Final, Protocol

logger: Final = logging.getLogger("echomq")


class Running(Protocol):
    """The ``Job`` that a handler was given."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def name(self) -> str:
        """The name of its task."""

    @property
    def queue_name(self) -> str:
        """The name of its queue."""

    @property
    def _home(self) -> Any: ...


running_job: Final[ContextVar[Running | None]] = ContextVar("running_job", default=None)
"""The job whose handler runs here."""


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose records carry ``queue``, ``job_id`` and ``job_name`` of the job whose handler runs, if one does.

    Example:
        >>> from echomq import job_logger
        >>> job_logger.info("half of the pages are read")
    """

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """See ``logging.LoggerAdapter``."""
        job = running_job.get()
        if job is not None:
            kwargs["extra"] = {**about(job.queue_name, job.id, job.name), **(kwargs.get("extra") or {})}
        return msg, kwargs


job_logger: Final = JobLogger(logging.getLogger("echomq.job"), {})
"""For what handlers have to say: ``echomq.job``."""


_SELDOM: Final = 60.0
_MOST_TEXTS: Final = 10


class Seldom:
    """For trouble that comes again and again: each text is logged once a minute at most, and no more than ten texts in that time.

    One thread at a time uses it.
    """

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def error(self, text: str, *values: object) -> None:
        """As ``logger.error``."""
        self._log(logging.ERROR, text, values)

    def warning(self, text: str, *values: object) -> None:
        """As ``logger.warning``."""
        self._log(logging.WARNING, text, values)

    def _log(self, level: int, text: str, values: tuple[object, ...]) -> None:
        now, whole = time.monotonic(), text % values
        self._said = {said: at for said, at in self._said.items() if now - at < _SELDOM}
        if whole not in self._said and len(self._said) < _MOST_TEXTS:
            self._said[whole] = now
            logger.log(level, text, *values, stacklevel=3)


def about(queue: str, job_id: str, job_name: str) -> Mapping[str, str]:
    """What ``extra`` of a record about a job holds."""
    return {"queue": queue, "job_id": job_id, "job_name": job_name}


def said_by(error: BaseException) -> str:
    """What an error says, even one whose own ``__str__`` fails."""
    try:
        return str.__str__(str(error))  # which a class may give a text of its own class
    except BaseException:  # whatever a user's class does here
        return "its message cannot be read"
