"""The types of the public surface say what is right and what is wrong: one run of each type checker over programs of users."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
Found = dict[tuple[str, int], list[str]]


def mypy(folder: Path) -> Found:
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--python-version", "3.11"),
            *("--cache-dir", str(ROOT / ".mypy_cache" / "typing"), "--no-pretty", "--no-color-output", "."),
        ],
        cwd=folder, env={**os.environ, "MYPYPATH": str(ROOT / "src")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    found: Found = defaultdict(list)
    for file, line, text in re.findall(r"^(\w+\.py):(\d+): error: (.*)$", ran.stdout, re.MULTILINE):
        found[file, int(line)].append(text)
    return found


def pyright(folder: Path) -> Found:
    (folder / "pyrightconfig.json").write_text(
        json.dumps({"typeCheckingMode": "standard", "pythonVersion": "3.11", "extraPaths": [str(ROOT / "src")]})
    )
    ran = subprocess.run(
        [ROOT / "node_modules" / ".bin" / "pyright", "--outputjson", "--pythonpath", sys.executable, "."],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    found: Found = defaultdict(list)
    for said in json.loads(ran.stdout)["generalDiagnostics"]:
        if said["severity"] == "error":
            found[Path(said["file"]).name, said["range"]["start"]["line"] + 1].append(said["message"])
    return found


@pytest.mark.parametrize("checker", [mypy, pyright])
@pytest.mark.timeout(180)
def test_what_is_right_passes_and_each_mistake_is_refused(checker: Callable[[Path], Found], tmp_path: Path) -> None:
    marked = set()
    for program in PROGRAMS.glob("*.py"):
        shutil.copy(program, tmp_path)
        lines = enumerate(program.read_text("utf-8").splitlines(), start=1)
        marked |= {(program.name, number) for number, line in lines if line.endswith("# E")}
    found = checker(tmp_path)
    refused_wrongly = {place: said for place, said in found.items() if place not in marked}
    assert (refused_wrongly, sorted(marked - set(found))) == ({}, [])
    assert len(marked) > 50
