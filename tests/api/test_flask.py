"""Flask: the extension."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask import Flask, current_app, g, has_app_context

from echomq import Connection, EchoMQ, InvalidOption, Job, JobSpec, Tasks
from echomq.integrations.flask import FlaskEchoMQ


@pytest.fixture
def jobs() -> Iterator[FlaskEchoMQ]:
    made = FlaskEchoMQ()
    yield made
    made.connection.portal.end()


def flask_app(url: str, **config: Any) -> Flask:
    app = Flask("school")
    app.config.update({"ECHOMQ_URL": url, "SCHOOL": "evening", **config})
    return app


def test_a_view_enqueues_many_times_from_many_threads(jobs: FlaskEchoMQ, url: str) -> None:
    """faults.md 119: the second call of a sync producer used a connection of a closed loop."""

    @jobs.task(queue="enrollments")
    def enroll(learner: int) -> None:
        raise NotImplementedError

    app = flask_app(url)
    jobs.init_app(app)

    @app.post("/<int:learner>")
    def start(learner: int) -> str:
        extension: EchoMQ = current_app.extensions["echomq"]
        assert extension is jobs
        return enroll.sync.enqueue(learner).id

    def post(learner: int) -> str:
        return app.test_client().post(f"/{learner}").text

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(post, range(100)))) == 100
    queue = jobs.sync.queue("enrollments")
    assert sorted(job.data["learner"] for job in queue.jobs("waiting")) == list(range(100))
    jobs.sync.close()


async def test_tasks_run_in_the_context_of_the_application(jobs: FlaskEchoMQ, url: str) -> None:
    torn_down: list[Any] = []
    group = Tasks(queue="mail")

    @jobs.task(queue="mail", pass_job=True)
    def plain(job: Job[Any], n: int) -> str:
        g.number = n
        return f"{current_app.config['SCHOOL']} {job.id}"

    @jobs.task(queue="mail")
    async def asynchronous(n: int) -> str:
        g.number = n
        return str(current_app.config["SCHOOL"])

    @group.task
    def grouped() -> str:
        g.number = "of the group"
        return current_app.name

    @jobs.task(queue="mail")
    def broken() -> None:
        g.number = "broken"
        raise ValueError("no paper")

    jobs.include(group)
    app = flask_app(url)

    @app.teardown_appcontext
    def note(error: BaseException | None) -> None:
        torn_down.append((g.get("number"), error and str(error)))

    jobs.init_app(app)
    async with jobs, jobs.worker("mail", concurrency=4):
        assert await (await plain.enqueue(1)).result(timeout=10) == "evening 1"
        assert await (await asynchronous.enqueue(2)).result(timeout=10) == "evening"
        assert await (await grouped.enqueue()).result(timeout=10) == "school"
        with pytest.raises(Exception, match="no paper"):
            await (await broken.enqueue()).result(timeout=10)
    assert torn_down == [(1, None), (2, None), ("of the group", None), ("broken", "no paper")]
    assert not has_app_context()


async def test_a_task_without_an_application_says_what_is_missing(url: str) -> None:
    jobs = FlaskEchoMQ(connection=url)

    @jobs.task
    def noted() -> None:
        raise NotImplementedError

    async with jobs, jobs.worker():
        with pytest.raises(Exception, match=r"call init_app\(app\)"):
            await (await noted.enqueue()).result(timeout=10)


def test_before_init_app_there_is_no_server(jobs: FlaskEchoMQ) -> None:
    assert "the server that init_app will name" in repr(jobs)
    with pytest.raises(InvalidOption, match=r"call init_app\(app\) of the FlaskEchoMQ before the first job"):
        jobs.sync.queue("mail").add("welcome")


def test_the_server_and_its_times_come_from_the_configuration(
    jobs: FlaskEchoMQ, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.init_app(flask_app(url, ECHOMQ_WAIT=7, ECHOMQ_CALL_TIMEOUT=3.5))
    assert (jobs.connection.wait, jobs.connection.call_timeout) == (7, 3.5)
    with pytest.raises(InvalidOption, match="wait"):
        FlaskEchoMQ(flask_app(url, ECHOMQ_WAIT=-1))
    with pytest.raises(InvalidOption, match="no server was named"):
        FlaskEchoMQ(Flask("school"))
    monkeypatch.setenv("ECHOMQ_URL", url)
    assert FlaskEchoMQ(Flask("school")).connection.where == Connection(url).where
    assert FlaskEchoMQ(flask_app("", ECHOMQ_URL=Connection(url, wait=9))).connection.wait == 9


def test_a_factory_makes_an_application_for_each_test(jobs: FlaskEchoMQ, url: str) -> None:
    other = url.replace("db=0", "db=1")
    jobs.init_app(flask_app(url))
    jobs.sync.queue("mail").add("welcome")
    jobs.init_app(flask_app(url))  # the same server: nothing changes
    assert jobs.sync.queue("mail").count() == 1
    with pytest.raises(InvalidOption, match="is in use with"):
        jobs.init_app(flask_app(other))
    jobs.sync.close()
    jobs.init_app(flask_app(other))
    assert jobs.sync.queue("mail").count() == 0
    jobs.sync.queue("mail").add_bulk([JobSpec("welcome")] * 3)
    jobs.sync.queue("mail").admin.obliterate()
    jobs.sync.close()


def test_an_application_has_several(jobs: FlaskEchoMQ, url: str) -> None:
    app = flask_app("redis://nowhere:1")
    others = FlaskEchoMQ(app, connection=url)
    jobs.init_app(app)
    assert others.sync.queue("mail").add("welcome").id == "1"
    assert app.extensions["echomq"] is others
    assert jobs.connection.where == "nowhere:1/0"
    others.sync.close()


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(InvalidOption, match="must be a Flask application"):
        FlaskEchoMQ("redis://localhost")  # type: ignore[arg-type]
