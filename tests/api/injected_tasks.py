"""An app whose tasks run in processes of their own: these find it, and its providers, by the name of this module."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from echomq import EchoMQ, Inject, Job, Middleware, RunOutcome, current_job


class Model:
    """What takes long to load."""

    def __init__(self) -> None:
        self.pid = os.getpid()


class Scratch(list[str]):
    """What each job has for itself."""


class Connection:
    """Made by a coroutine."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id


class Tells(Middleware):
    """Writes down what it is called for."""

    def __init__(self) -> None:
        self.events: list[str] = []

    async def around(self, job: Job[Any], call_next: Any) -> Any:
        self.events.append(f"around {job.name} in {os.getpid()}")
        result = await call_next()
        return f"{result}!" if job.name == "speak" else result

    async def after(self, job: Job[Any], outcome: RunOutcome) -> None:
        self.events.append(f"after {job.name}: {outcome.result} {outcome.error!r}")


tells = Tells()
app = EchoMQ(os.environ.get("INJECTED_URL", "redis://127.0.0.1:1"), middleware=[tells])


def note(text: str) -> None:
    with Path(os.environ["INJECTED_NOTES"]).open("a") as notes:
        notes.write(f"{text}\n")


@app.provide(scope="process")
async def model() -> AsyncIterator[Model]:
    if os.environ.get("INJECTED_BROKEN"):
        raise ConnectionError("no such model")
    note("model")
    yield Model()
    note("model back")


@app.provide
def scratch(model: Model = Inject()) -> Iterator[Scratch]:
    try:
        yield Scratch()
    except ValueError as error:
        note(f"scratch sees {error!r}")
        raise
    note("scratch back")


@app.provide
async def connection() -> AsyncIterator[Connection]:
    job = current_job()
    assert job is not None
    yield Connection(job.id)
    note("connection back")


@app.task(queue="computed", process=True, pass_job=True)
def compute(
    job: Job[Any],
    number: int,
    model: Model = Inject(),
    scratch: Scratch = Inject(),
    connection: Connection = Inject(),
) -> list[int]:
    assert model.pid == os.getpid()
    assert connection.job_id == job.id
    assert scratch == []
    if number < 0:
        raise ValueError(number)
    return [number, model.pid]


@app.task(queue="computed", process=True)
def speak(word: str) -> str:
    return word
