"""The examples of scripts, notebooks and web applications, each started as its README says."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from echomq import Queue
from tests.examples.web import EXAMPLES, program, site
from tests.support.command import environment
from tests.support.wait import wait_until

ENROLLMENT = {"learner": 7, "course": "redis"}


async def enrolled(client: httpx.AsyncClient) -> Any:
    """Starts a job, waits until it has ended, and gives its result."""
    started = await client.post("/enrollments", json=ENROLLMENT)
    assert started.status_code == 202, started.text
    path = f"/enrollments/{started.json()['id']}"

    async def ended() -> Any:
        answer = (await client.get(path)).json()
        return answer if answer["state"] == "completed" else None

    await wait_until(ended, timeout=20, what=path)
    return (await client.get(path)).json()["result"]


async def test_fastapi_with_a_worker_of_its_own(url: str) -> None:
    folder = EXAMPLES / "fastapi_app"
    serve = ("uvicorn", "main:api", "--host", "127.0.0.1", "--port", "PORT")
    async with program(folder, "echomq", "worker", "main:jobs", url=url), site(folder, *serve, url=url) as client:
        assert await enrolled(client) == "learner 7 has a seat in redis"
        assert (await client.get("/enrollments/999")).status_code == 404


async def test_fastapi_with_the_workers_inside(url: str) -> None:
    folder = EXAMPLES / "fastapi_app"
    serve = ("uvicorn", "main:api", "--host", "127.0.0.1", "--port", "PORT")
    async with site(folder, *serve, url=url, env={"WORK_HERE": "1"}) as client:
        assert await enrolled(client) == "learner 7 has a seat in redis"
    async with Queue("enrollments", connection=url) as queue:
        assert await queue.workers() == []  # it has stopped in order


@pytest.mark.parametrize("preload", [[], ["--preload"]], ids=["", "preload"])
async def test_flask_under_gunicorn(url: str, preload: list[str]) -> None:
    """Several processes of several threads; each request is one job, and each job runs once."""
    folder = EXAMPLES / "flask_app"
    serve = (
        "gunicorn",
        "--no-control-socket",
        "--workers",
        "3",
        "--threads",
        "4",
        "--bind",
        "127.0.0.1:PORT",
        *preload,
        "wsgi:app",
    )
    async with site(folder, *serve, url=url) as client:
        async with program(folder, "echomq", "worker", "wsgi:jobs", url=url):
            assert await enrolled(client) == "learner 7 of the evening school has a seat in redis"
        answers = await asyncio.gather(
            *(client.post("/enrollments", json={"learner": number, "course": "lua"}) for number in range(100))
        )
        ids = {answer.json()["id"] for answer in answers}
        assert len(ids) == 100
    async with Queue("enrollments", connection=url) as queue:
        waiting = [job async for job in queue.jobs("waiting")]
        assert {job.id for job in waiting} == ids
        assert Counter(job.data["learner"] for job in waiting) == Counter(range(100))


CALLS_BEFORE_THE_FORK = """
from school import create_app, enroll, jobs
app = create_app()
enroll.sync.enqueue(-1, course="before the fork")
"""


@pytest.mark.parametrize("requests", [100, pytest.param(3000, marks=pytest.mark.torture)])
@pytest.mark.parametrize("kind", [("--threads", "4"), ("--worker-class", "sync")], ids=["threads", "sync"])
async def test_processes_that_come_and_go_beside_calls(
    url: str, tmp_path: Path, kind: Sequence[str], requests: int
) -> None:
    """The parent has its connection open when it forks, and each process is replaced after some requests."""
    (tmp_path / "wsgi_open.py").write_text(CALLS_BEFORE_THE_FORK)
    serve = (
        "gunicorn",
        "--no-control-socket",
        "--workers",
        "3",
        "--bind",
        "127.0.0.1:PORT",
        "--preload",
        "--max-requests",
        "20",
        *kind,
    )
    env = {"PYTHONPATH": str(EXAMPLES / "flask_app")}
    async with site(tmp_path, *serve, "wsgi_open:app", url=url, env=env) as client:
        few = asyncio.Semaphore(8)

        async def post(number: int) -> str:
            async with few:
                answer = await client.post("/enrollments", json={"learner": number, "course": "lua"})
                return str(answer.json()["id"])

        ids = await asyncio.gather(*map(post, range(requests)))
    assert len(set(ids)) == requests
    async with Queue("enrollments", connection=url) as queue:
        learners = [job.data["learner"] async for job in queue.jobs("waiting")]
    assert sorted(learners) == list(range(-1, requests))


async def run(folder: Path, *words: str, url: str) -> str:
    ran = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", *words, cwd=folder, env=environment(url),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(40):
        out, err = await ran.communicate()
    assert (ran.returncode, err.decode()) == (0, "")
    return out.decode()


async def test_the_script(url: str) -> None:
    folder = EXAMPLES / "script"
    async with program(folder, "echomq", "worker", "enrol:app", url=url):
        assert await run(folder, "enrol.py", url=url) == (
            "learner 0 has a seat in redis\n"
            "learner 1 has a seat in python\n"
            "learner 2 has none: ValueError: there is no course in alchemy\n"
            "2 completed, 1 failed\n"
        )


NOTEBOOK = """
import ast, asyncio, inspect, pathlib

async def notebook():
    names = {}
    for cell in pathlib.Path("cells.py").read_text().split("# %%")[1:]:
        title, _, text = cell.partition("\\n")
        tree = ast.parse(text)
        if isinstance(tree.body[-1], ast.Expr):  # what a cell ends with is shown
            tree.body[-1] = ast.Assign([ast.Name("shown", ast.Store())], tree.body[-1].value)
            ast.fix_missing_locations(tree)
        code = compile(tree, title, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        ran = eval(code, names)
        if inspect.iscoroutine(ran):
            await ran
        print(names.pop("shown", None))
    await names["app"].close()

asyncio.run(notebook())
"""
"""What a kernel does with the cells of a notebook: it runs each in the thread of its event loop."""


async def test_the_notebook(url: str) -> None:
    folder = EXAMPLES / "notebook"
    async with program(folder, "echomq", "worker", "tasks:app", url=url):
        shown = (await run(folder, "-c", NOTEBOOK, url=url)).splitlines()
    assert shown[:3] == ["None", str(sum(n * n for n in range(20))), "{'completed': 20}"]
    assert (shown[5], len(shown)) == ("49", 7), shown
