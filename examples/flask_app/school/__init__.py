"""A web application in Flask whose views start jobs. See README.md."""

from __future__ import annotations

import os
from typing import Any

from flask import Flask, abort, current_app, request

from echomq.integrations.flask import FlaskEchoMQ

jobs = FlaskEchoMQ()


@jobs.task(queue="enrollments", attempts=5, backoff=1)
def enroll(learner: int, course: str) -> str:
    return f"learner {learner} of {current_app.config['SCHOOL']} has a seat in {course}"


def create_app() -> Flask:
    app = Flask(__name__)
    app.config["SCHOOL"] = "the evening school"
    app.config["ECHOMQ_URL"] = os.environ.get("ECHOMQ_URL", "embedded://flask-example")
    jobs.init_app(app)

    @app.post("/enrollments")
    def start() -> tuple[dict[str, str], int]:
        enrollment: dict[str, Any] = request.get_json()
        job = enroll.sync.enqueue(enrollment["learner"], course=enrollment["course"])
        return {"id": job.id}, 202

    @app.get("/enrollments/<job_id>")
    def outcome(job_id: str) -> dict[str, Any]:
        job = jobs.sync.queue("enrollments").get_job(job_id)
        if job is None:
            abort(404)
        return {"state": job.state, "result": job.return_value}

    return app
