"""A web application in FastAPI whose requests start jobs. See README.md."""

from __future__ import annotations

import os
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel

from echomq import EchoMQ, Queue
from echomq.integrations.fastapi import get_queue, lifespan

jobs = EchoMQ(os.environ.get("ECHOMQ_URL", "embedded://fastapi-example"))


@jobs.task(queue="enrollments", attempts=5, backoff=1)
async def enroll(learner: int, course: str) -> str:
    return f"learner {learner} has a seat in {course}"


# With WORK_HERE=1 this process runs the jobs, too; without, `echomq worker main:jobs` does.
api = FastAPI(lifespan=lifespan(jobs, work=bool(os.environ.get("WORK_HERE"))))
Enrollments = Annotated[Queue, Depends(get_queue("enrollments"))]


class Enrollment(BaseModel):
    learner: int
    course: str


@api.post("/enrollments", status_code=202)
async def start(enrollment: Enrollment) -> dict[str, str]:
    job = await enroll.enqueue(enrollment.learner, course=enrollment.course)
    return {"id": job.id}


@api.get("/enrollments/{job_id}")
async def outcome(job_id: str, enrollments: Enrollments) -> dict[str, str | None]:
    job = await enrollments.get_job(job_id)
    if job is None:
        raise HTTPException(404, f"there is no enrolment {job_id}")
    return {"state": job.state, "result": str(job.return_value) if job.state == "completed" else None}
