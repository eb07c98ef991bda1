"""What other libraries call things, and what they are called here: said where somebody uses a name that there is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NoReturn, TypeVar

C = TypeVar("C", bound=type)

_ENQUEUE: Final = "write .enqueue(…), with .options(…) before it for a delay and the like"
_SPEC: Final = "write .spec(…), the job that .enqueue(…) would add, for app.enqueue_all(…)"
_RESULT: Final = "write .result(timeout=…)"
_CANCEL: Final = "write .cancel(…)"
_STATE: Final = "write .refresh(), whose .state says it"
_ACKNOWLEDGED: Final = (
    "leave it out: a job is done when its run has ended, and is run again if its worker dies before that"
)
_INCLUDE: Final = "write app.include(…) for each group of tasks"
_SERVER: Final = "give the URL of the server first: EchoMQ('redis://…')"

ATTRIBUTES_OF_TASKS: Final = {
    **dict.fromkeys(("apply_async", "defer", "delay", "enqueue_job", "kiq", "send", "send_with_options"), _ENQUEUE),
    **dict.fromkeys(("message", "s", "si", "signature", "subtask"), _SPEC),
}

ATTRIBUTES_OF_JOBS: Final = {
    **dict.fromkeys(("get", "get_result"), _RESULT),
    **dict.fromkeys(("abort", "revoke"), _CANCEL),
    **dict.fromkeys(("ready", "status", "successful"), _STATE),
}

ATTRIBUTES_OF_APPS: Final = {
    "shared_task": "write tasks = Tasks(), @tasks.task, and app.include(tasks) where the app is made",
    "send_task": "write app.queue(…).add(name, data)",
    "conf": "give options where the app, the task or the worker is made",
    "autodiscover_tasks": _INCLUDE,
    "AsyncResult": "write app.queue(…).get_job(id)",
}

OPTIONS_OF_TASKS: Final = {
    "bind": "write pass_job=True; the function's first argument is the job then",
    "max_retries": "write attempts=…, which counts the first run too: max_retries=3 is attempts=4",
    "default_retry_delay": "write backoff=…",
    "autoretry_for": "write attempts=…, and retry_policy=… for which errors are worth another attempt",
    "retry_backoff": "write backoff=Backoff.exponential(…)",
    "retry_jitter": "write backoff=Backoff.exponential(…, jitter=…)",
    "time_limit": "write timeout=…, with process=True if what exceeds it is to be killed",
    "soft_time_limit": "write timeout=…",
    "rate_limit": "write limiter=Limiter(max=…, duration=…)",
    "acks_late": _ACKNOWLEDGED,
    "reject_on_worker_lost": _ACKNOWLEDGED,
    "ignore_result": "leave it out: results are kept with their jobs; for how long, says remove_on_complete=…",
    "serializer": "leave it out: arguments are stored as JSON; the app can be given a codec=…",
    "queue_name": "write queue=…",
}

OPTIONS_OF_JOBS: Final = {
    "countdown": "write delay=…",
    "eta": "write at=…",
    "expires": "write expire_in=…, seconds after it could first run",
    "task_id": "write job_id=…",
    "args": "give the arguments to enqueue(…)",
    "kwargs": "give the arguments to enqueue(…)",
    "queue_name": "write queue=…",
}

OPTIONS_OF_APPS: Final = {
    "broker": _SERVER,
    "backend": "leave it out: results are where the jobs are",
    "include": _INCLUDE,
    "redis_settings": _SERVER,
}


def check_known(given: Iterable[str], known: Iterable[str], where: str, elsewhere: Mapping[str, str]) -> None:
    """Refuses an option that there is not, with what it is called here if another library has it.

    Raises:
        TypeError: there is no such option.
    """
    names = list(known)
    for option in given:
        if option not in names:
            remedy = elsewhere.get(option, f"it has: {', '.join(names)}")
            raise TypeError(f"{where}(…) has no option {option!r}{':' if option in elsewhere else ';'} {remedy}")


class _Elsewhere:
    """Stands where another library has something: an attribute that is not there, and says what to write."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text

    def __get__(self, found: object, kind: type | None = None) -> NoReturn:
        raise AttributeError(self._text, name=self._name, obj=kind if found is None else found)


def answers(what: str, elsewhere: Mapping[str, str]) -> Callable[[C], C]:
    """Has a class say, for these names alone, what to write in their place.

    Type checkers see nothing of it, and so go on refusing them; and other attributes are found as fast as ever, which would not
    be so with a ``__getattr__``.
    """

    def mark(kind: C) -> C:
        for name, remedy in elsewhere.items():
            setattr(kind, name, _Elsewhere(name, f"{what} has no {name!r}; {remedy}"))
        return kind

    return mark
