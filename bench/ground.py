"""What a measurement stands on: a server on its own core, the peers' processes on another, and a meter for disturbance."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import redis

from bench import environments
from tests.support.server import Kind, Server

HERE = Path(__file__).parent
# Commands of ours in the server's statistics; no peer uses them while it is measured.
_OURS = {
    "info",
    "config|resetstat",
    "config|set",
    "flushall",
    "slowlog|get",
    "slowlog|reset",
    "monitor",
    "script|flush",
    "hello",
    "echo",
}


# -- cores -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placement:
    """Which cores the server and the peers' processes may use. Empty: the system decides."""

    name: str
    server: frozenset[int] = frozenset()
    clients: frozenset[int] = frozenset()


def placements() -> dict[str, Placement]:
    """The placements that this machine can do; ``split`` is the one for all figures, unless said otherwise."""
    free = Placement("free")
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        return {"split": free}
    first, second, *_ = sorted(os.sched_getaffinity(0))
    return {
        "split": Placement("split", frozenset({first}), frozenset({second})),
        "one core": Placement("one core", frozenset({first}), frozenset({first})),
        "free": free,
    }


def _pin(pid: int, cores: frozenset[int]) -> None:
    """Puts every thread of a process onto these cores."""
    if not hasattr(os, "sched_setaffinity"):
        return
    for thread in psutil.Process(pid).threads():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread.id, cores or range(os.cpu_count() or 1))


# -- the server --------------------------------------------------------------------------------------------------------


class Ground:
    """One server, empty to begin with, and what it says of itself."""

    def __init__(self, kind: Kind, placement: Placement) -> None:
        self.server = Server(kind, config={"loglevel": "warning"})
        self.placement = placement

    def __enter__(self) -> Ground:
        self.server.start()
        self.url = self.server.tcp_url
        self.client = redis.Redis.from_url(self.server.url, decode_responses=True)
        info = self.client.info("server")
        self.version = f"{self.server.kind} {info.get('valkey_version') or info['redis_version']}"
        self.place(self.placement)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.server.remove()

    def place(self, placement: Placement) -> None:
        """Moves the server; the peers' processes that start from now on follow."""
        self.placement = placement
        _pin(self.server.pid, placement.server)

    def empty(self) -> None:
        """As new: no keys, no scripts, counters at nought."""
        self.client.execute_command("FLUSHALL", "SYNC")  # Valkey frees later by default: memory would be wrong
        self.client.script_flush()
        self.mark()
        self.memory_before = self.memory()

    def mark(self) -> None:
        """What ``spent`` counts begins here."""
        self.client.config_resetstat()
        self._cpu_before = self._cpu()

    def spent(self) -> dict[str, Any]:
        """Commands (those inside scripts included) and seconds of processor time since the last mark."""
        stats = self.client.info("commandstats")
        calls = {name.removeprefix("cmdstat_"): line["calls"] for name, line in stats.items()}
        calls = {name: count for name, count in calls.items() if name not in _OURS}
        return {"calls": calls, "commands": sum(calls.values()), "cpu_s": self._cpu() - self._cpu_before}

    def memory(self) -> int:
        """Bytes in use. Ends what ``spent`` counts: the server's histograms take 20 KB for each command that ran."""
        self.client.config_resetstat()
        return int(self.client.info("memory")["used_memory"])

    def used_cpu(self) -> float:
        """Seconds of processor time of the whole process."""
        times = psutil.Process(self.server.pid).cpu_times()
        return times.user + times.system

    def _cpu(self) -> float:
        cpu = self.client.info("cpu")
        return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


# -- the peers ---------------------------------------------------------------------------------------------------------


class Peer:
    """A library under measurement, by its name or ``name:variant``. Its adapter is ``peers/name.py`` or ``.mjs``."""

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self.name, _, self.variant = spec.partition(":")
        environments.prepare(self.name)
        self._node = (HERE / "peers" / f"{self.name}.mjs").exists()
        about = self._about_node() if self._node else self._about_python()
        self.jobs: int = about["JOBS"]
        self.settings: str = about["SETTINGS"]
        self.versions: dict[str, str] = about["versions"]

    def _about_node(self) -> dict[str, Any]:
        ask = f"import('{HERE}/peers/{self.name}.mjs').then((peer) => console.log(JSON.stringify(peer.meta)))"
        about: dict[str, Any] = json.loads(subprocess.check_output(["node", "-e", ask], env=self._environ()))
        about["versions"] = {"node": subprocess.check_output(["node", "--version"], text=True).strip().lstrip("v")}
        for package in about["PACKAGES"]:
            file = environments.NODE / "node_modules" / package / "package.json"
            about["versions"][package] = json.loads(file.read_text())["version"]
        return about

    def _about_python(self) -> dict[str, Any]:
        about: dict[str, Any] = {}
        for statement in ast.parse((HERE / "peers" / f"{self.name}.py").read_text()).body:  # it cannot be imported here
            if isinstance(statement, ast.Assign):
                target, value = statement.targets[0], ast.literal_eval(statement.value)
                several = isinstance(target, ast.Tuple)
                names = target.elts if several else [target]
                about |= {name.id: one for name, one in zip(names, value if several else [value], strict=True)}
        ask = "import importlib.metadata as m, sys, json; print(json.dumps({d: m.version(d) for d in sys.argv[1:]}))"
        command = [environments.python(self.name), "-c", ask, *about["PACKAGES"]]
        about["versions"] = {"python": platform.python_version(), **json.loads(subprocess.check_output(command))}
        return about

    @staticmethod
    def _environ() -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
        return kept | {"NODE_ENV": "production", "BENCH_HOME": str(environments.HOME)}

    @contextlib.contextmanager
    def process(self, ground: Ground, role: str, **cfg: Any) -> Iterator[Process]:
        """Runs one side of the peer; it is killed at the end of the block."""
        with tempfile.TemporaryDirectory(prefix="echomq-bench-") as folder:
            out = Path(folder) / "out.json"
            cfg |= {"url": ground.url, "out": str(out), "variant": self.variant}
            program = (
                ["node", str(HERE / "driver.mjs")]
                if self._node
                else [environments.python(self.name), str(HERE / "driver.py")]
            )
            command = [*program, self.name, role, json.dumps(cfg)]
            if setpriv := shutil.which("setpriv"):
                command = [setpriv, "--pdeathsig", "KILL", "--", *command]
            log = Path(folder) / "log"
            before = os.sched_getaffinity(0) if ground.placement.clients else None
            try:
                if before is not None:
                    os.sched_setaffinity(0, ground.placement.clients)  # inherited
                with log.open("wb") as into:
                    popen = subprocess.Popen(
                        command,
                        env=self._environ(),
                        stdin=subprocess.DEVNULL,
                        stdout=into,
                        stderr=into,
                        start_new_session=True,
                    )
            finally:
                if before is not None:
                    os.sched_setaffinity(0, before)
            try:
                yield Process(self.spec, popen, out, log)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(popen.pid, signal.SIGKILL)
                popen.wait()

    def produce(self, ground: Ground, **cfg: Any) -> dict[str, Any]:
        """Adds jobs and gives what that took."""
        with self.process(ground, "produce", **cfg) as process:
            return process.result(timeout=300)


@dataclass
class Process:
    """A running side of a peer."""

    spec: str
    popen: subprocess.Popen[bytes]
    out: Path
    log: Path

    def result(self, *, timeout: float) -> dict[str, Any]:
        """What it measured, as soon as it is there."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.out.exists():
                found: dict[str, Any] = json.loads(self.out.read_text())
                return found
            if self.popen.poll() is not None and not self.out.exists():
                raise RuntimeError(f"{self.spec} ended with {self.popen.returncode}:\n{self._tail()}")
            time.sleep(0.03)
        raise TimeoutError(f"{self.spec} has no result after {timeout} s:\n{self._tail()}")

    def stop(self, *, timeout: float = 10) -> None:
        """Ends it in order: what it holds is stored."""
        self.popen.terminate()
        self.popen.wait(timeout)

    def cpu(self) -> float:
        """Seconds of processor time that it has used."""
        times = psutil.Process(self.popen.pid).cpu_times()
        return times.user + times.system

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]


# -- disturbance -------------------------------------------------------------------------------------------------------


class Meter:
    """How many cores were busy with what is neither the server, nor a peer, nor this program."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._at, self._busy, self._own = time.monotonic(), _busy(), self._owned()

    def foreign(self) -> float:
        """Cores since the meter was made. Peers' processes must have ended."""
        seconds = time.monotonic() - self._at
        return round(max(0.0, _busy() - self._busy - (self._owned() - self._own)) / seconds, 3)

    def _owned(self) -> float:
        mine = os.times()
        return self._ground.used_cpu() + mine.user + mine.system + mine.children_user + mine.children_system


def _busy() -> float:
    # Soft interrupts are left out: those of the loopback device are our own traffic. Stolen time is somebody else's.
    times = psutil.cpu_times()
    return float(times.user + getattr(times, "nice", 0) + times.system + getattr(times, "steal", 0))


def machine() -> dict[str, Any]:
    """What this was measured on."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
    }
