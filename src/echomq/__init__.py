"""EchoMQ: a reliable job queue for Python on Redis or Valkey.

Two front doors: tasks (``EchoMQ``, ``@app.task``, ``enqueue``) and the objects below them (``Queue``, ``Worker``, ``Job``).
Programs without an event loop have the same calls without ``await``: ``app.sync``, ``task.sync``, ``SyncQueue``.
"""

from echomq._hooks import RunEvent, RunEventKind
from echomq._injection import Inject
from echomq._log import JobLogger, job_logger
from echomq._version import __version__
from echomq.app import EchoMQ
from echomq.connection import Connection
from echomq.errors import (
    BrokenKey,
    BulkAddError,
    ConnectionLost,
    EchoMQError,
    EncodingError,
    InvalidOption,
    JobCancelled,
    JobFailed,
    JobLocked,
    JobNotFound,
    JobRemoved,
    LifespanFailed,
    LockLost,
    OutcomesNotStored,
    PayloadTooLarge,
    PayloadUnreadable,
    ProcessCrashed,
    QueueFull,
    RateLimited,
    ResultTimeout,
    ResultUnavailable,
    RetryLater,
    ServerError,
    ServerUnavailable,
    StaleCall,
    StateError,
    StoreUnavailable,
    Unrecoverable,
    UnsupportedServer,
)
from echomq.event_types import Event
from echomq.events import QueueEvents
from echomq.job import Job
from echomq.middleware import CallNext, Middleware, RunOutcome
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
from echomq.options import Backoff, Cron, Deduplication, Every, JobSpec, Keep, Limiter, ProcessPool
from echomq.queue import DeadLetterQueue, Page, Queue
from echomq.retry_policy import RetryPolicy
from echomq.scheduler import JobScheduler
from echomq.slots import SharedSlots
from echomq.sync import SyncJob, SyncJobScheduler, SyncQueue
from echomq.task import AsyncTask, PlainTask, Task
from echomq.tasks import Tasks
from echomq.worker import Call, Worker, current_job

__all__ = [
    "AsyncTask",
    "Backoff",
    "BrokenKey",
    "BulkAddError",
    "Call",
    "CallNext",
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
    "Inject",
    "InvalidOption",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobLocked",
    "JobLogger",
    "JobNotFound",
    "JobOptions",
    "JobRemoved",
    "JobScheduler",
    "JobSpec",
    "JobState",
    "Keep",
    "LifespanFailed",
    "Limiter",
    "LockLost",
    "Logs",
    "MetricsPoint",
    "MetricsSeries",
    "Middleware",
    "OutcomesNotStored",
    "Page",
    "Parent",
    "PayloadTooLarge",
    "PayloadUnreadable",
    "PlainTask",
    "ProcessCrashed",
    "ProcessPool",
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
    "RunEvent",
    "RunEventKind",
    "RunOutcome",
    "ScheduleInfo",
    "ServerError",
    "ServerUnavailable",
    "SharedSlots",
    "StaleCall",
    "StateError",
    "StoreUnavailable",
    "SyncJob",
    "SyncJobScheduler",
    "SyncQueue",
    "Task",
    "Tasks",
    "Unrecoverable",
    "UnsupportedServer",
    "Worker",
    "WorkerInfo",
    "WorkerStats",
    "__version__",
    "current_job",
    "job_logger",
]
