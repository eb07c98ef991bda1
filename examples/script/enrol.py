"""A plain script, without an event loop: it enqueues, waits for results, and looks after the queue. See README.md."""

from __future__ import annotations

import os
import sys

from echomq import EchoMQ, JobFailed

app = EchoMQ(os.environ.get("ECHOMQ_URL", "embedded://script-example"))


@app.task(queue="enrollments", attempts=3)
def enroll(learner: int, course: str) -> str:
    if course == "alchemy":
        raise ValueError("there is no course in alchemy")
    return f"learner {learner} has a seat in {course}"


def main(courses: list[str]) -> None:
    jobs = enroll.sync.map(range(len(courses)), courses)
    for job in jobs:
        try:
            print(job.result(timeout=30))
        except JobFailed as error:
            print(f"learner {job.data['learner']} has none: {error.reason}")
    counts = app.sync.queue("enrollments").counts("completed", "failed")
    print(f"{counts['completed']} completed, {counts['failed']} failed")


if __name__ == "__main__":
    main(sys.argv[1:] or ["redis", "python", "alchemy"])
