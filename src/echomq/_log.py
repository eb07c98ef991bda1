"""The ``echomq`` logger. Payloads are never logged; a record about a job carries ``job_id``, ``job_name`` and ``queue``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
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


def about(queue: str, job_id: str, job_name: str) -> Mapping[str, str]:
    """What ``extra`` of a record about a job holds."""
    return {"queue": queue, "job_id": job_id, "job_name": job_name}
