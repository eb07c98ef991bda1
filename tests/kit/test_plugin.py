"""The pytest plugin, as projects use it: pytest-asyncio in either mode, anyio, plain tests, xdist; and in the way of nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import pytest
from shop import app

@pytest.fixture
def echomq_app():
    return app
"""

SHOP = """
from echomq import EchoMQ

app = EchoMQ("redis://127.0.0.1:1")

@app.task
async def enroll(learner: int) -> int:
    await receipt.enqueue(learner)
    return learner

@app.task
def receipt(learner: int) -> None: ...
"""

BODY = """
    job = await enroll.enqueue(7)
    echomq.assert_enqueued(enroll, {"learner": 7}, count=1)
    assert [job.name for job in await echomq.run_until_drained()] == ["enroll", "receipt"]
    assert await job.result() == 7
    await receipt.options(delay=3600).enqueue(8)
    [run] = await echomq.advance(hours=1)
    assert run.data == {"learner": 8}
"""

PLAIN = """
from shop import enroll, receipt

def test_plain(echomq):
    job = echomq.wait(enroll.enqueue(7))
    echomq.assert_enqueued(enroll, count=1)
    assert len(echomq.wait(echomq.run_until_drained())) == 2
    assert echomq.wait(job.result()) == 7

def test_sync(echomq_inline):
    assert enroll.sync.enqueue(7).result(timeout=5) == 7
    echomq_inline.assert_enqueued(receipt, {"learner": 7})
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "test_plain.py").write_text(PLAIN)
    return tmp_path


LOOP = ("-o", "asyncio_default_fixture_loop_scope=function")


def run(folder: Path, *options: str) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "ECHOMQ_"))}
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:valkey", "-p", "no:cacheprovider", *(options or LOOP)],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("mark", "options"),
    [
        ("", (*LOOP, "-o", "asyncio_mode=auto", "-n", "2")),
        ("@pytest.mark.asyncio", (*LOOP, "-o", "asyncio_mode=strict")),
        ("@pytest.mark.anyio", ("-p", "no:asyncio", "-p", "anyio")),
    ],
    ids=["asyncio auto, xdist", "asyncio strict", "anyio"],
)
def test_whoever_runs_the_event_loop(project: Path, mark: str, options: tuple[str, ...]) -> None:
    inline = """
    job = await enroll.enqueue(7)
    assert (job.state, await job.result()) == ("completed", 7)
    echomq_inline.assert_enqueued(receipt)
"""
    (project / "test_async.py").write_text(
        f"""
import pytest
from shop import enroll, receipt

@pytest.fixture
def anyio_backend():
    return "asyncio"

{mark}
async def test_it(echomq):{BODY}
{mark}
async def test_it_again(echomq):{BODY}
{mark}
async def test_inline(echomq_inline):{inline}"""
    )
    code, said = run(project, *options)
    assert (code, "5 passed" in said) == (0, True), said


def test_jobs_that_are_left_are_told(project: Path) -> None:
    (project / "test_plain.py").write_text(
        """
from shop import enroll

def test_forgetful(echomq):
    echomq.wait(enroll.options(delay=60).enqueue(7))
"""
    )
    code, said = run(project)
    assert code == 0, said
    assert "EchoMQ: jobs that the test left" in said
    assert "enroll(learner=7) [queue 'default', delayed, delay 60 s]" in said
    code, said = run(project, *LOOP, "-o", "echomq_leftover_jobs=fail")
    assert (code, "1 error" in said) == (1, True), said
    code, said = run(project, *LOOP, "-o", "echomq_leftover_jobs=ignore")
    assert (code, "EchoMQ" in said) == (0, False), said
    assert "must be report, fail or ignore" in run(project, *LOOP, "-o", "echomq_leftover_jobs=never")[1]


def test_who_does_not_use_it_does_not_notice(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        """
import sys

def test_other():
    assert "echomq_pytest" in sys.modules
    assert not {"echomq", "redis", "msgspec"} & set(sys.modules)
"""
    )
    code, said = run(tmp_path)
    assert code == 0, said


def test_an_app_of_the_tests_own(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(
        """
def test_own(echomq_app, echomq):
    @echomq_app.task
    def double(number: int) -> int:
        return 2 * number

    job = echomq.wait(double.enqueue(4))
    echomq.wait(echomq.run_until_drained())
    assert echomq.wait(job.result()) == 8
"""
    )
    code, said = run(tmp_path)
    assert (code, "1 passed" in said) == (0, True), said


def test_a_call_that_is_not_awaited_fails_the_test(tmp_path: Path) -> None:
    (tmp_path / "test_forgetful.py").write_text(
        """
def test_plain(echomq):
    echomq.advance(hours=3)

async def test_async(echomq):
    echomq.run_until_drained()
"""
    )
    code, said = run(tmp_path, *LOOP, "-o", "asyncio_mode=auto")
    assert (code, "2 failed" in said, "error" in said.lower().replace("assertionerror", "")) == (1, True, False), said
    assert "called advance(…) and did not await it" in said
    assert "called run_until_drained(…) and did not await it" in said
    assert "echomq_pytest.py" not in said  # nor a frame of ours


def test_both_fixtures_at_once_are_refused(tmp_path: Path) -> None:
    (tmp_path / "test_both.py").write_text(
        """
def test_both(echomq, echomq_inline): ...
"""
    )
    code, said = run(tmp_path)
    assert code == 1, said
    assert "a test has the fixture echomq, or echomq_inline, and not both" in said
