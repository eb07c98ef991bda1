"""The documentation is true as far as a program can tell: links lead somewhere, excerpts stand in the scripts, programs run.

A comment before a block of Python says that it is a whole program, to be run: ``<!-- run -->``, ``<!-- run: name.py -->`` if
a later one imports it, ``<!-- run with a worker: module:app -->``, ``<!-- run beside its worker: module:app -->`` if it is
that module itself, ``<!-- run with pytest: test_name.py -->``. The programs of a page share a folder and run in order.
Any other block of Python must compile, and what it imports must be there. All pass mypy's strict checks.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
LUA = ROOT / "src" / "echomq" / "_lua"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]

_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>run[^\n]*?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)")
_PROOF = re.compile(r"^python (examples/\S+)", re.MULTILINE)
_ELLIPSIS = "…"

PYTEST = [
    *(sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", ".", "-W", "error"),
    *("-p", "no:cacheprovider", "-p", "no:valkey", "-o", "asyncio_mode=auto"),
    *("-o", "asyncio_default_fixture_loop_scope=function"),
]

TAKEN_FOR_GRANTED = """\
import json, sqlite3, time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from echomq import Backoff, Cron, EchoMQ, Every, Job, JobScheduler, JobSpec, Queue, Worker
from echomq.idempotency import RedisOnce, SQLOnce
app = EchoMQ()
"""
"""What an excerpt uses without saying so. Any other name that it does not explain is one of the reader's own program."""


@dataclass(frozen=True)
class Block:
    """A block of code in a page."""

    kind: str
    text: str
    mark: str | None


def blocks(page: Path, kind: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(page.read_text("utf-8")):
        if found["kind"] == kind:
            yield Block(found["kind"], found["text"], found["mark"])


def prose(page: Path) -> str:
    return re.sub(r"`[^`\n]*`", "", _BLOCK.sub("", page.read_text("utf-8")))


def anchors(page: Path) -> set[str]:
    """The names that headings get: lower case, punctuation gone, blanks as hyphens."""
    text = _BLOCK.sub("", page.read_text("utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in _LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue  # another site
        path, _, anchor = link.partition("#")
        target = (page.parent / unquote(path)).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_every_page_can_be_reached_from_the_index() -> None:
    reached, to_read = set[Path](), [ROOT / "docs" / "index.md"]
    while to_read:
        page = to_read.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        for link in _LINK.findall(prose(page)):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.is_file():
                to_read.append(target)
    assert set((ROOT / "docs").rglob("*.md")) <= reached


def test_the_navigation_has_every_page() -> None:
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", [page for page in PAGES if any(blocks(page, "lua"))], ids=name_of)
def test_lua_excerpts_stand_in_the_scripts(page: Path) -> None:
    """A block names its file in the first line; ``…`` stands for what is left out; indentation does not matter."""
    for block in blocks(page, "lua"):
        first, _, text = block.text.partition("\n")
        file = [line.strip() for line in (LUA / first.removeprefix("-- ")).read_text("utf-8").splitlines()]
        start = 0
        for part in text.split(_ELLIPSIS):
            wanted = [line.strip() for line in part.strip("\n").splitlines()]
            places = [at for at in range(start, len(file)) if file[at : at + len(wanted)] == wanted]
            assert places, f"{first} has no such lines after line {start}:\n{part}"
            start = places[0] + len(wanted)


@pytest.mark.parametrize("page", [page for page in PAGES if any(blocks(page, "python"))], ids=name_of)
def test_python_blocks_compile_and_import_what_exists(page: Path) -> None:
    for block in blocks(page, "python"):
        tree = compile(block.text, name_of(page), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "echomq":
                module = importlib.import_module(node.module)
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_python_blocks_have_right_types(tmp_path: Path) -> None:
    for page in PAGES:
        for number, block in enumerate(blocks(page, "python")):
            _, _, name = (block.mark or "").partition("run: ")
            file = tmp_path / (name or f"{page.stem.replace('-', '_')}_{number}.py")
            assert not file.exists(), f"two programs are called {file.name}"
            # A method without its class says nothing of its self.
            excerpt = TAKEN_FOR_GRANTED + block.text.replace("(self,", "(self: Any,")
            file.write_text(block.text if block.mark else excerpt, "utf-8")
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--python-version", "3.11"),
            *(f"--disable-error-code={code}" for code in ("top-level-await", "name-defined", "no-redef")),
            *("--cache-dir", str(ROOT / ".mypy_cache" / "docs"), "--no-pretty", "--no-color-output", "."),
        ],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": str(ROOT / "examples")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_first_program_is_short() -> None:
    first = next(blocks(ROOT / "README.md", "python"))
    assert first.mark is not None
    assert len(first.text.splitlines()) <= 15


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_proofs_that_are_named_exist(page: Path) -> None:
    for block in blocks(page, "sh"):
        for proof in _PROOF.findall(block.text):
            assert (ROOT / proof).is_file()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(block.mark for block in blocks(page, "python"))], ids=name_of
)
def test_programs_run(page: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "ECHOMQ_HOME": str(tmp_path / "home"), "PYTHONPATH": str(tmp_path)}
    environment.pop("ECHOMQ_URL", None)
    servers = set[str]()
    try:
        for number, block in enumerate(block for block in blocks(page, "python") if block.mark):
            assert block.mark is not None
            how, _, what = block.mark.partition(": ")
            own = {"run": what, "run beside its worker": f"{what.partition(':')[0]}.py"}.get(how)
            file = tmp_path / (own or f"program_{number}.py")
            file.write_text(block.text, "utf-8")
            servers |= set(re.findall(r"embedded://([\w-]+)", block.text)) - {"memory"}
            command = [sys.executable, "-W", "error", str(file)]
            if how in ("run with a worker", "run beside its worker"):
                _run_beside_a_worker(command, what, tmp_path, environment)
            elif how == "run with pytest":
                (tmp_path / what).write_text(block.text, "utf-8")
                _run([*PYTEST, what], tmp_path, environment)
            else:
                assert how == "run", f"unknown mark {block.mark!r}"
                _run(command, tmp_path, environment)
    finally:
        for server in servers:
            subprocess.run(
                [sys.executable, "-m", "echomq.cli", "server", "stop", "--force", server],
                env=environment, capture_output=True, timeout=30, check=False,
            )  # fmt: skip


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=40, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _run_beside_a_worker(command: list[str], target: str, folder: Path, environment: dict[str, str]) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "echomq.cli", "worker", target, "--log-level", "warning"],
        cwd=folder, env=environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert worker.stderr is not None
        assert worker.stderr.readline().startswith("ready")
        _run(command, folder, environment)
        worker.terminate()
        assert worker.wait(30) == 0, worker.stderr.read()
    finally:
        worker.kill()
        worker.communicate()
