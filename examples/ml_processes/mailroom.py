"""Letters are sorted by a model, in processes: ``python mailroom.py``, or ``echomq worker mailroom:app``.

Training and sorting take the processor, so they run beside the worker and not in it. Each process reads the model once.
"""

from __future__ import annotations

import asyncio
import functools
import os
import tempfile
from pathlib import Path
from typing import Any

from model import Model

from echomq import EchoMQ, Job, JobFailed, ProcessPool

FOLDER = Path(os.environ.setdefault("MAILROOM", tempfile.mkdtemp(prefix="mailroom-")))
"""Processes inherit the environment, and with it the folder."""

app = EchoMQ(os.environ.get("ECHOMQ_URL", "embedded://memory"))

LETTERS = {
    "complaint": [
        "The seat was broken and nobody came",
        "I want my money back, the room was cold",
        "Broken again. I complain!",
    ],
    "praise": ["A wonderful course, thank you", "Thank you for the kind teacher", "I learned a lot, wonderful"],
    "question": ["When does the course begin?", "How do I get a seat in the course?", "Where is the room, please?"],
}


@app.task(queue="mailroom", process=True, pass_job=True, timeout=60)
def train(job: Job[str], name: str, rounds: int) -> str:
    examples = [(text, kind) for kind, texts in LETTERS.items() for text in texts]
    Model.trained(examples, rounds=rounds, tell=job.update_progress).write(FOLDER / f"{name}.json")
    return name


@functools.cache
def model(name: str) -> Model:
    """Read once in each process, by its first job."""
    return Model.read(FOLDER / f"{name}.json")


@app.task(queue="mailroom", process=True)
def sort(name: str, letter: str) -> tuple[str, int]:
    return model(name).kind_of(letter), os.getpid()


@app.task(queue="mailroom", process=True, timeout=0.5)
def never_converges() -> None:
    while True:
        sum(range(10_000))


@app.task(queue="mailroom", process=True, attempts=2, pass_job=True)
def native_code(job: Job[str]) -> str:
    if job.attempts_started == 1:
        os.abort()  # as a library does that was built wrong
    return "ran the second time"


async def main() -> None:
    pool = ProcessPool(size=2, max_jobs=1_000)
    async with app, app.worker("mailroom", concurrency=4, processes=pool):
        trained = await (await train.enqueue("letters", rounds=50)).result(timeout=60)
        print(f"trained: {trained}")

        new = ["Thank you, wonderful teacher!", "The room was cold, I complain", "When do I get my seat?"] * 20
        jobs = await sort.map(["letters"] * len(new), new)
        results: list[Any] = [await job.result(timeout=60) for job in jobs]
        print(f"sorted: {[kind for kind, _ in results[:3]]}, {len(results)} letters")
        processes = {process for _, process in results}
        print(f"beside the worker: {os.getpid() not in processes}, in at most 2 processes: {len(processes) <= 2}")

        try:
            await (await never_converges.enqueue()).result(timeout=60)
        except JobFailed as error:
            print(f"killed: {error.reason}")
        print(f"a crash cost an attempt: {await (await native_code.enqueue()).result(timeout=60)}")


if __name__ == "__main__":
    asyncio.run(main())
