"""The Django example as a user runs it: servers of gunicorn and uvicorn, a worker, a relay, each a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.wait import wait_until

SHOP = Path(__file__).parents[2] / "examples" / "django_app"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def manage(environment: dict[str, str], *words: str) -> str:
    ran = subprocess.run(
        [sys.executable, SHOP / "manage.py", *words],
        env=environment, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@contextmanager
def running(environment: dict[str, str], log: Path, *words: str, end: int = 0) -> Iterator[None]:
    """A process that is asked to stop at the end, and has to do so in order."""
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, *words], cwd=SHOP, env=environment, stdout=output, stderr=output)
    try:
        yield
        assert process.poll() is None, log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == end, log.read_text()
    finally:
        process.kill()
        process.wait()


def ask(port: int, path: str, **form: str) -> tuple[int, Any]:
    data = urllib.parse.urlencode(form).encode() if form else None
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"null") if error.code == 409 else None
    except (ConnectionError, urllib.error.URLError):
        return 0, None


@pytest.fixture
def environment(url: str, tmp_path: Path) -> dict[str, str]:
    made = {
        **os.environ,
        "ECHOMQ_URL": url,
        "SHOP_DATABASE": str(tmp_path / "shop.sqlite3"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    made.pop("DJANGO_SETTINGS_MODULE", None)
    return made


async def test_orders_and_their_jobs(environment: dict[str, str], tmp_path: Path) -> None:
    manage(environment, "migrate", "--verbosity", "0")
    assert "no issues" in manage(environment, "check")
    port, aport = free_port(), free_port()
    with ExitStack() as stack:
        gunicorn = ["-m", "gunicorn", "project.wsgi", "--workers", "2", "--preload", "--bind", f"127.0.0.1:{port}"]
        stack.enter_context(running(environment, tmp_path / "wsgi", *gunicorn))
        uvicorn = ["-m", "uvicorn", "project.asgi:application", "--port", str(aport), "--lifespan", "off"]
        stack.enter_context(running(environment, tmp_path / "asgi", *uvicorn, end=-signal.SIGTERM))
        stack.enter_context(running(environment, tmp_path / "worker", "manage.py", "echomq_worker"))
        await wait_until(lambda: ask(port, "/orders/1/")[0] == 404, timeout=40)
        numbers = range(1, 9)
        assert [ask(port, "/orders/", number=str(number))[0] for number in numbers] == [201] * 8
        assert ask(port, "/orders/", number="3") == (409, {"error": "there is such an order"})
        assert "8 waiting" in manage(environment, "echomq_outbox", "status")
        stack.enter_context(running(environment, tmp_path / "relay", "manage.py", "echomq_outbox", "relay"))

        def is_done(number: int) -> bool:
            return bool(ask(port, f"/orders/{number}/")[1] == {"receipt": f"receipt of order {number}", "reminders": 1})

        for number in numbers:
            await wait_until(lambda number=number: is_done(number), timeout=40)
        assert "0 waiting" in manage(environment, "echomq_outbox", "status")

        _, report = ask(port, "/reports/", now="1")
        await wait_until(lambda: ask(port, f"/reports/{report['report']}/")[1]["status"] == "SUCCESSFUL", timeout=40)
        assert ask(port, f"/reports/{report['report']}/") == (200, {"status": "SUCCESSFUL", "orders": 8})

        await wait_until(lambda: ask(aport, "/orders/1/")[0] == 200, timeout=40)
        assert ask(aport, "/reminders/1/", now="1")[0] == 202
        await wait_until(lambda: ask(aport, "/orders/1/")[1]["reminders"] == 2, timeout=40)
