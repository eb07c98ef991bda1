"""EchoMQ: a reliable job queue for Python on Redis or Valkey.

Two front doors: tasks (``EchoMQ``, ``@app.task``, ``enqueue``) and the objects below them (``Queue``, ``Worker``, ``Job``).
"""

from echomq.app import EchoMQ
from echomq.connection import Connection
from echomq.errors import (
    BrokenKey,
    BulkAddError,
    ConnectionLost,
    EchoMQError,
    EncodingError,
    InvalidOption,
    JobFailed,
    JobLocked,
    JobNotFound,
    JobRemoved,
    OutcomesNotStored,
    RateLimited,
    ResultTimeout,
    ResultUnavailable,
    RetryLater,
    ServerError,
    ServerUnavailable,
    StaleCall,
    StateError,
    Unrecoverable,
    UnsupportedServer,
)
from echomq.job import Job
from echomq.models import JobOptions, JobState, Parent
from echomq.options import Backoff, JobSpec, Keep, Limiter
from echomq.queue import Queue
from echomq.task import AsyncTask, PlainTask, Task
from echomq.worker import Call, Worker

__version__ = "0.1.0"

__all__ = [
    "AsyncTask",
    "Backoff",
    "BrokenKey",
    "BulkAddError",
    "Call",
    "Connection",
    "ConnectionLost",
    "EchoMQ",
    "EchoMQError",
    "EncodingError",
    "InvalidOption",
    "Job",
    "JobFailed",
    "JobLocked",
    "JobNotFound",
    "JobOptions",
    "JobRemoved",
    "JobSpec",
    "JobState",
    "Keep",
    "Limiter",
    "OutcomesNotStored",
    "Parent",
    "PlainTask",
    "Queue",
    "RateLimited",
    "ResultTimeout",
    "ResultUnavailable",
    "RetryLater",
    "ServerError",
    "ServerUnavailable",
    "StaleCall",
    "StateError",
    "Task",
    "Unrecoverable",
    "UnsupportedServer",
    "Worker",
    "__version__",
]
