"""Tasks with types, a group and an app, for the tests of processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import date
from typing import Any

from echomq import EchoMQ, Job, Tasks

DAY = date(2026, 11, 30)

app = EchoMQ("redis://nowhere.invalid")
group = Tasks(queue="grades")


@dataclass
class Seat:
    row: int
    course: str


@app.task(process=True)
def of_the_app() -> int:
    return os.getpid()


@group.task(process=True)
def grade(text: str) -> tuple[int, int]:
    return len(text), os.getpid()


def typed(job: Job[Any], seat: Seat, day: date) -> Seat:
    return Seat(seat.row + 1, f"{job.name} {day}")


def wrong() -> int:
    value: Any = "a text"
    return value  # type: ignore[no-any-return]
