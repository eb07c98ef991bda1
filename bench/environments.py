"""The peers' environments: one virtual environment a library, because their pins of redis-py differ, and one for Node.

They live under ``$BENCH_HOME`` (default ``~/.cache/echomq-bench``) and are made when they are missing or their pins have
changed. EchoMQ itself runs from the environment that runs the benchmark.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
HOME = Path(os.environ.get("BENCH_HOME") or Path.home() / ".cache" / "echomq-bench")
NODE = HOME / "node"

_REDIS, _SPEED = "redis==8.1.0", ("hiredis==3.5.0", "uvloop==0.23.0")
_PINS = {
    "arq": ("arq==0.28.0", *_SPEED),
    "bullmq_py": ("bullmq==3.4.4", _REDIS, *_SPEED),
    "dramatiq": ("dramatiq[redis]==2.2.1", _REDIS, *_SPEED),
    "saq": ("saq[redis]==0.26.4", "typing_extensions", *_SPEED),
    "taskiq": ("taskiq==0.13.0", "taskiq-redis==1.2.4", _REDIS, *_SPEED),
}


def python(peer: str) -> str:
    """The interpreter that runs this Python peer."""
    return sys.executable if peer == "echomq" else str(HOME / "peers" / peer / "bin" / "python")


def prepare(peer: str) -> None:
    """Makes the environment of a peer, unless it is there with these pins."""
    if peer == "echomq":
        return
    if peer == "bullmq_node":
        _prepare_node()
        return
    folder = HOME / "peers" / peer
    stamp, pins = folder / "pins", "\n".join(_PINS[peer])
    if stamp.exists() and stamp.read_text() == pins:
        return
    print(f"setting up {peer} …", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [python(peer), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, *_PINS[peer]], check=True)
    stamp.write_text(pins)


def _prepare_node() -> None:
    source = HERE / "peers" / "node"
    lock, installed = source / "package-lock.json", NODE / "package-lock.json"
    if (NODE / "done").exists() and installed.read_bytes() == lock.read_bytes():
        return
    print("setting up bullmq_node …", flush=True)
    shutil.rmtree(NODE, ignore_errors=True)
    NODE.mkdir(parents=True)
    for file in ("package.json", "package-lock.json"):
        shutil.copy(source / file, NODE / file)
    subprocess.run(["npm", "ci", "--ignore-scripts", "--loglevel=error"], cwd=NODE, check=True)
    (NODE / "done").touch()
