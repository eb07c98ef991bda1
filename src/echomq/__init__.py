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
    LockLost,
    OutcomesNotStored,
    QueueFull,
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
from echomq.event_types import Event
from echomq.events import QueueEvents
from echomq.job import Job
from echomq.models import (
    CurrentJob,
    DeadLetter,
    Explanation,
    FailureKind,
    Healed,
    JobOptions,
    JobState,
    Logs,
    MetricsPoint,
    MetricsSeries,
    Parent,
    Reason,
    ReasonKind,
    ScheduleInfo,
    WorkerInfo,
    WorkerStats,
)
from echomq.options import Backoff, Cron, Deduplication, Every, JobSpec, Keep, Limiter
from echomq.queue import DeadLetterQueue, Page, Queue
from echomq.retry_policy import RetryPolicy
from echomq.scheduler import JobScheduler
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
    "Cron",
    "CurrentJob",
    "DeadLetter",
    "DeadLetterQueue",
    "Deduplication",
    "EchoMQ",
    "EchoMQError",
    "EncodingError",
    "Event",
    "Every",
    "Explanation",
    "FailureKind",
    "Healed",
    "InvalidOption",
    "Job",
    "JobFailed",
    "JobLocked",
    "JobNotFound",
    "JobOptions",
    "JobRemoved",
    "JobScheduler",
    "JobSpec",
    "JobState",
    "Keep",
    "Limiter",
    "LockLost",
    "Logs",
    "MetricsPoint",
    "MetricsSeries",
    "OutcomesNotStored",
    "Page",
    "Parent",
    "PlainTask",
    "Queue",
    "QueueEvents",
    "QueueFull",
    "RateLimited",
    "Reason",
    "ReasonKind",
    "ResultTimeout",
    "ResultUnavailable",
    "RetryLater",
    "RetryPolicy",
    "ScheduleInfo",
    "ServerError",
    "ServerUnavailable",
    "StaleCall",
    "StateError",
    "Task",
    "Unrecoverable",
    "UnsupportedServer",
    "Worker",
    "WorkerInfo",
    "WorkerStats",
    "__version__",
]
