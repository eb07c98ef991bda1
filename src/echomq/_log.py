"""The ``echomq`` logger. Payloads are never logged; a record about a job carries ``job_id``, ``job_name`` and ``queue``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

logger: Final = logging.getLogger("echomq")


def about(queue: str, job_id: str, job_name: str) -> Mapping[str, str]:
    """What ``extra`` of a record about a job holds."""
    return {"queue": queue, "job_id": job_id, "job_name": job_name}
