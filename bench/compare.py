"""Two revisions of EchoMQ side by side: what a plain job costs each. ``python -m bench.compare OLD [NEW] [--rounds 10]``.
With ``--variant tasks`` and one revision twice: what a job of an app's task costs beside one of a bare ``Worker``.

Old and new take turns, round by round, each on a server emptied before, and the round's ratio new / old is what counts: what
disturbs the machine for longer than a round disturbs both. Reported is the median of the ratios with the lowest and highest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, cast

from bench.ground import HERE, Ground, placements
from tests.support.server import Kind

ROOT = HERE.parent
FIGURES = (
    "server µs, add one by one",
    "server µs, add in bulk",
    "server µs, drain at 100",
    "server µs, drain at 1",
    "client µs, add one by one",
    "client µs, add in bulk",
    "worker µs, drain at 100",
    "worker µs, drain at 1",
)


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """The sources of a revision, in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="echomq-compare-") as folder:
        archive = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        yield Path(folder) / "src"


class Side:
    """One revision at work."""

    def __init__(self, source: Path, ground: Ground, variant: str) -> None:
        self._source = source
        self._variant = variant
        self._ground = ground

    def _run(self, role: str, **cfg: Any) -> float:
        """Runs one side of the driver to its end; microseconds of its processor time per job."""
        with tempfile.TemporaryDirectory(prefix="echomq-compare-") as folder:
            out = Path(folder) / "out.json"
            cfg |= {"url": self._ground.url, "out": str(out), "variant": self._variant}
            environ = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
            environ["PYTHONPATH"] = str(self._source)
            command = [sys.executable, str(HERE / "driver.py"), "echomq", role, json.dumps(cfg)]
            process = subprocess.Popen(command, env=environ)
            cores = self._ground.placement.clients
            if cores:
                os.sched_setaffinity(process.pid, cores)
            try:
                while not out.exists():
                    if process.poll() is not None and not out.exists():
                        raise RuntimeError(f"{role} ended with {process.returncode}")
                    try:
                        process.wait(0.05)
                    except subprocess.TimeoutExpired:
                        continue
                found = json.loads(out.read_text())
            finally:
                process.terminate()
                process.wait(20)
        return float(found["cpu_s"]) * 1e6 / int(cfg["n"])

    def round(self, bulk: int, lone: int) -> dict[str, float]:
        """All figures once."""
        found: dict[str, float] = {}
        self._ground.empty()
        for name, role, cfg in (
            ("add one by one", "produce", {"n": lone, "first": 1, "mode": "single"}),
            ("drain at 1", "worker", {"n": lone, "concurrency": 1}),
            ("add in bulk", "produce", {"n": bulk, "first": 1, "mode": "bulk"}),
            ("drain at 100", "worker", {"n": bulk, "concurrency": 100}),
        ):
            self._ground.mark()
            client = self._run(role, **cfg)
            found[f"server µs, {name}"] = float(self._ground.spent()["cpu_s"]) * 1e6 / cast("int", cfg["n"])
            found[f"{'worker' if role == 'worker' else 'client'} µs, {name}"] = client
        return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old")
    parser.add_argument("new", nargs="?", default="HEAD")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--server", choices=["redis", "valkey"], default="redis")
    parser.add_argument("--jobs", type=int, default=40_000)
    parser.add_argument("--lone", type=int, default=8_000)
    parser.add_argument("--variant", default="", help="of the adapter, for the new one: tasks, say")
    asked = parser.parse_args()
    rounds: list[dict[str, tuple[float, float]]] = []
    with (
        checked_out(asked.old) as old,
        checked_out(asked.new) as new,
        Ground(cast("Kind", asked.server), placements()["split"]) as ground,
    ):
        sides = [Side(old, ground, ""), Side(new, ground, asked.variant)]
        for side in sides:
            side.round(2_000, 500)  # warm: compiled bytecode, the system's caches
        for number in range(asked.rounds):
            order = [0, 1] if number % 2 == 0 else [1, 0]
            found = {index: sides[index].round(asked.jobs, asked.lone) for index in order}
            rounds.append({name: (found[0][name], found[1][name]) for name in FIGURES})
            print(f"round {number + 1} of {asked.rounds}", file=sys.stderr)
        version = ground.version
    print(f"{asked.old} and {asked.new} on {version}: medians of {asked.rounds} rounds, and of the rounds' ratios\n")
    print("| | old | new | new / old (lowest – highest) |\n|---|---:|---:|---:|")
    for name in FIGURES:
        pairs = [one[name] for one in rounds]
        ratios = sorted(after / before for before, after in pairs)
        print(
            f"| {name} | {median(before for before, _ in pairs):.1f} | {median(after for _, after in pairs):.1f} "
            f"| {median(ratios):.3f} ({ratios[0]:.3f} – {ratios[-1]:.3f}) |"
        )


if __name__ == "__main__":
    main()
