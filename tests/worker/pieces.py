"""Pieces that the worker's roles are tested with: jobs that stand on no server."""

from __future__ import annotations

import json
from typing import Any

from echomq._clock import lasting
from echomq._store.codec import StoredJob
from echomq._worker.held import Held


def stored(job_id: str = "1", *, opts: dict[str, Any] | None = None, **fields: Any) -> StoredJob:
    """A job as a fetch gives it."""
    every = {"name": "work", "data": "{}", "opts": json.dumps(opts or {}), "ats": 1, **fields}
    return StoredJob(job_id, {name.encode(): str(value).encode() for name, value in every.items()})


def held(job_id: str = "1", *, age: float = 0.0, token: str = "lane:1", **fields: Any) -> Held:
    """A job in hand, whose lock was renewed so many seconds ago."""
    return Held(stored(job_id, **fields), token, lasting() - age)
