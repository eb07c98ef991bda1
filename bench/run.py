"""``make bench``: EchoMQ and its peers side by side, on one machine, in one run. Writes results.jsonl and RESULTS.md.

README.md, beside this file, says what is measured and how.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bench import environments, report
from bench.floors import GAP
from bench.ground import HERE, Ground, Meter, Peer, Placement, machine, placements

RESULTS = HERE / "results.jsonl"
ROOT = HERE.parent
CORE = ["echomq", "bullmq_node", "bullmq_py"]
OTHERS = ["echomq:asyncio", "echomq:trimming", "echomq:tasks", "saq", "arq", "taskiq:list", "taskiq:stream", "dramatiq"]
KINDS = ["redis", "valkey"]
CASES = ["rates", "pickup", "idle", "scripts", "placement", "size", "executors"]
EXECUTORS = [
    "echomq:threads",
    "echomq:processes",
    "bullmq_py",
    "saq",
    "arq",
    "taskiq:list",
    "taskiq:stream",
    "dramatiq",
]

_SLOW = 2000
"""Microseconds from which calls are logged where there are millions of jobs: so few that the log itself costs nothing."""

_HELD = 0.00075
"""Seconds that a call of the script takes that only counts: what calls of ours take as a rule."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        rounds: how often each peer has its turn.
        share: of the jobs of a full run.
        pickups: jobs of one pick-up measurement.
        pickup_rounds: how many of them.
        idle_s: seconds for which an idle worker is watched; sweeps come every 15 s (Node: 30 s).
        large: jobs waiting, and jobs completed, of a large queue.
    """

    rounds: int
    share: float
    pickups: int
    pickup_rounds: int
    idle_s: float
    large: int


FULL = Scale(rounds=5, share=1, pickups=200, pickup_rounds=3, idle_s=30, large=1_000_000)
QUICK = Scale(rounds=2, share=0.4, pickups=100, pickup_rounds=1, idle_s=15, large=200_000)


class Bench:
    """One run: its peers, its scale, and where its rows go."""

    def __init__(self, peers: list[Peer], scale: Scale, tries: int) -> None:
        self.peers = peers
        self.scale = scale
        self.tries = tries
        self.failed = False
        self.fast = [peer for peer in peers if peer.spec in ("echomq", "bullmq_node")]
        self.ours = [peer for peer in peers if peer.spec == "echomq"]
        self.places = placements()

    # -- rows

    def emit(self, **row: Any) -> None:
        row["at"] = datetime.now(UTC).isoformat(timespec="seconds")
        with RESULTS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        shown = {
            name: _short(value) for name, value in row.items() if name not in ("at", "server", "calls", "latencies")
        }
        print(" ".join(f"{name}={value}" for name, value in shown.items()), flush=True)

    def measured(self, ground: Ground, measure: Callable[..., list[Row]], *args: Any) -> None:
        """Measures, again if other programs took part, and keeps the last try; a try that was disturbed says so."""
        for left in reversed(range(self.tries)):
            meter = Meter(ground)
            rows = measure(ground, *args)
            foreign = meter.foreign()
            if foreign <= report.NOISE or not left:
                for row in rows:
                    self.emit(server=ground.version, **row, foreign=foreign, noisy=foreign > report.NOISE)
                return
            print(f"  {foreign:.2f} cores of other programs: measured again", flush=True)
            time.sleep(1)

    def turns(self, peers: list[Peer], rounds: int) -> Iterator[tuple[int, Peer]]:
        """A B, B A, A B …, so that a machine that becomes slower or faster treats all alike."""
        for number in range(rounds):
            for peer in peers if number % 2 == 0 else reversed(peers):
                yield number, peer

    def run(self, kind: str, cases: list[str]) -> None:
        with Ground(kind, self.places["split"]) as ground:  # type: ignore[arg-type]
            for case in cases:
                print(f"== {ground.version}: {case}", flush=True)
                try:
                    getattr(self, case)(ground)
                except (RuntimeError, TimeoutError) as error:  # of a peer; the other cases still tell something
                    self.failed = True
                    self.emit(server=ground.version, case="error", of=case, error=str(error))

    # -- rates, processor time and memory

    def rates(self, ground: Ground) -> None:
        """Adds one by one and in bulk, drains at concurrency 1 and 100, and once at 10."""
        for number, peer in self.turns(self.peers, self.scale.rounds):
            jobs = round(peer.jobs * self.scale.share)
            self.measured(ground, self._drain, peer, 100, jobs)
            self.measured(ground, self._drain, peer, 1, jobs // 4)
            self.measured(ground, self._adds, peer, "single", jobs // 4)
            if number == 0:
                self.measured(ground, self._drain, peer, 10, jobs // 2)

    def _adds(self, ground: Ground, peer: Peer, mode: str, jobs: int) -> list[Row]:
        ground.empty()
        added = peer.produce(ground, n=jobs, mode=mode)
        spent = ground.spent()
        row = {
            "case": "add",
            "peer": peer.spec,
            "mode": mode,
            "placement": ground.placement.name,
            "jobs": jobs,
            "rate": jobs / added["elapsed"],
            "server_us": spent["cpu_s"] / jobs * 1e6,
            "client_us": added["cpu_s"] / jobs * 1e6,
            "commands": spent["commands"] / jobs,
            "bytes": (ground.memory() - ground.memory_before) / jobs,
        }
        return [row]

    def _drain(self, ground: Ground, peer: Peer, concurrency: int, jobs: int) -> list[Row]:
        """A bulk add and a drain: two rows."""
        rows = self._adds(ground, peer, "bulk", jobs)
        ground.mark()
        with peer.process(ground, "worker", n=jobs, concurrency=concurrency, cap_s=8) as worker:
            drained = worker.result(timeout=60)
        spent = ground.spent()
        time.sleep(0.1)  # the server notices that the connections are gone
        row = {
            "case": "drain",
            "peer": peer.spec,
            "concurrency": concurrency,
            "placement": ground.placement.name,
            "jobs": drained["jobs"],
            "rate": drained["jobs"] / drained["elapsed"],
            "client_us": drained["cpu_s"] / drained["jobs"] * 1e6,
        }
        if drained["partial"]:
            row["partial"] = True
        else:
            once = drained["distinct"] == drained["started"] == jobs
            row |= {
                "server_us": spent["cpu_s"] / jobs * 1e6,
                "commands": spent["commands"] / jobs,
                "bytes": (ground.memory() - ground.memory_before) / jobs,
                "once": once,
                "calls": spent["calls"],
            }
        return [*rows, row]

    # -- latency

    def pickup(self, ground: Ground) -> None:
        """From before the add to the first line of the handler, of an idle worker; and the floors."""
        self.measured(ground, self._floor, "trip", "2")
        for number in range(self.scale.pickup_rounds):
            self.measured(ground, self._floor, "wake", str(self.scale.pickups))
            for _, peer in self.turns(self.peers, 1):
                if peer in self.fast or number == 0:
                    self.measured(ground, self._picked_up, peer)

    def _floor(self, ground: Ground, what: str, amount: str) -> list[Row]:
        ground.empty()
        command = [sys.executable, "-m", "bench.floors", ground.url, what, amount]
        with _on(ground.placement):
            process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        out, _ = process.communicate(timeout=60)
        return [{"case": what, **json.loads(out)}]

    def _picked_up(self, ground: Ground, peer: Peer) -> list[Row]:
        ground.empty()
        jobs = self.scale.pickups
        with peer.process(ground, "worker", n=jobs + 1, concurrency=10, record=True, settle_s=0) as worker:
            time.sleep(2.5)
            sent = peer.produce(ground, n=jobs, first=1, mode="paced", gap_s=GAP)["sent"]
            starts = worker.result(timeout=30)["starts"]
        row = {
            "case": "pickup",
            "peer": peer.spec,
            "latencies": [(starts[number] - at) / 1e6 for number, at in sent.items()],
        }
        return [row]

    # -- an idle worker

    def idle(self, ground: Ground) -> None:
        """Commands (those inside scripts included) and calls of an idle worker, a second."""
        for peer in self.peers:
            ground.empty()
            with peer.process(ground, "worker", n=2, concurrency=10) as worker:
                time.sleep(2)
                peer.produce(ground, n=1, mode="single")
                time.sleep(3)
                ground.mark()
                with ground.client.monitor() as monitor:
                    cpu, start = worker.cpu(), time.monotonic()
                    time.sleep(self.scale.idle_s)
                    spent, seconds = ground.spent(), time.monotonic() - start
                    cpu = worker.cpu() - cpu
                    calls = _calls(ground, monitor)
            self.emit(
                server=ground.version,
                case="idle",
                peer=peer.spec,
                commands_s=spent["commands"] / seconds,
                calls_s=calls / seconds,
                client_ms_s=cpu / seconds * 1000,
                server_ms_s=spent["cpu_s"] / seconds * 1000,
                calls=spent["calls"],
            )

    # -- the longest script

    def scripts(self, ground: Ground) -> None:
        """Runs of their own with the slow log on, from 0.3 ms: what it logs, it slows down."""
        for peer in self.fast:
            for concurrency in (100, 1000):
                self.measured(ground, self._scripts, peer, concurrency)

    def _scripts(self, ground: Ground, peer: Peer, concurrency: int) -> list[Row]:
        ground.empty()
        jobs = round(peer.jobs * self.scale.share)
        with _slow_log(ground, 300) as slow:
            peer.produce(ground, n=jobs, mode="bulk")
            add = _script_row(peer.spec, f"add, then drain at {concurrency}: add", slow(), 0.3)
        with _slow_log(ground, 300) as slow:
            with peer.process(ground, "worker", n=jobs, concurrency=concurrency) as worker:
                worker.result(timeout=120)
            return [add, _script_row(peer.spec, f"add, then drain at {concurrency}: drain", slow(), 0.3)]

    # -- where the cores matter

    def placement(self, ground: Ground) -> None:
        """A drain at concurrency 1 with server and worker on two cores, on one, and as the system likes."""
        others = [place for name, place in self.places.items() if name != "split"]
        for place in others:
            ground.place(place)
            for _, peer in self.turns(self.fast, max(2, self.scale.rounds // 2)):
                jobs = round(peer.jobs * self.scale.share) // 4
                self.measured(ground, self._drain, peer, 1, jobs)
        ground.place(self.places["split"])

    # -- handlers in threads and in processes

    def executors(self, ground: Ground) -> None:
        """A drain at concurrency 100 of handlers in threads and in processes, ours and those of the Python peers."""
        ours = [Peer(spec) for spec in EXECUTORS[:2]] if self.ours else []
        theirs = [peer for peer in self.peers if peer.spec in EXECUTORS]
        for _, peer in self.turns([*ours, *theirs], self.scale.rounds):
            jobs = round(min(peer.jobs, 20_000) * self.scale.share)
            self.measured(ground, self._executor, peer, jobs)

    def _executor(self, ground: Ground, peer: Peer, jobs: int) -> list[Row]:
        _, drained = self._drain(ground, peer, 100, jobs)
        return [{**drained, "case": "executor"}]

    # -- a large queue

    def size(self, small: Ground) -> None:
        """The drain rate with a million jobs waiting and a million completed, against a queue of its own jobs only."""
        jobs, size = round(100_000 * self.scale.share), f"{self.scale.large:,}"
        for peer in self.ours:
            with Ground(small.server.kind, small.placement) as large:
                self.measured(large, self._held_up)
                self.measured(large, self._grow, peer)
                for _ in range(self.scale.rounds):
                    small.empty()
                    self.measured(small, self._part, peer, jobs, "empty")
                    self.measured(large, self._part, peer, jobs, size)
                self.measured(large, self._large_scripts, peer, jobs, size)

    def _held_up(self, ground: Ground) -> list[Row]:
        """How long this machine holds up a server: as many calls as the queue takes to grow, as long as they, of a script
        that only counts."""
        count = ground.client.register_script("local x = 0 for i = 1, tonumber(ARGV[1]) do x = x + i % 7 end")
        steps, tries = 20_000, 100
        start = time.monotonic()
        for _ in range(tries):
            count(args=[steps])
        steps = round(steps * _HELD / ((time.monotonic() - start) / tries))
        with _slow_log(ground, _SLOW) as slow:
            for _ in range(self.scale.large // 22):
                count(args=[steps])
            return [_script_row(report.FLOOR, "a script that only counts, no data", slow(), _SLOW / 1000)]

    def _grow(self, large: Ground, peer: Peer) -> list[Row]:
        large.empty()
        jobs = self.scale.large
        with _slow_log(large, _SLOW) as slow:
            peer.produce(large, n=jobs, mode="bulk")
            with peer.process(large, "worker", n=jobs, concurrency=100) as worker:
                worker.result(timeout=600)
                worker.stop()
            peer.produce(large, n=jobs, mode="bulk")
            return [_script_row(peer.spec, f"add, drain and add {jobs:,}", slow(), _SLOW / 1000)]

    def _large_scripts(self, large: Ground, peer: Peer, jobs: int, size: str) -> list[Row]:
        with _slow_log(large, _SLOW) as slow:
            self._part(large, peer, jobs, size)
            return [_script_row(peer.spec, f"add and drain with {size} waiting and completed", slow(), _SLOW / 1000)]

    def _part(self, ground: Ground, peer: Peer, jobs: int, waiting: str) -> list[Row]:
        """Adds as many jobs as it then takes away; the worker stops in order, so that none is left in the middle."""
        added = peer.produce(ground, n=jobs, mode="bulk")
        ground.mark()
        with peer.process(ground, "worker", n=jobs, ids=self.scale.large, concurrency=100, settle_s=0) as worker:
            drained = worker.result(timeout=60)
            worker.stop()
        spent = ground.spent()
        done = spent["calls"]["zadd"]  # one a completed job; some more than were asked for
        row = {
            "case": "size",
            "peer": peer.spec,
            "waiting": waiting,
            "rate": drained["jobs"] / drained["elapsed"],
            "add_rate": jobs / added["elapsed"],
            "server_us": spent["cpu_s"] / done * 1e6,
        }
        return [row]


def _script_row(peer: str, what: str, durations: list[float], threshold: float) -> Row:
    return {
        "case": "script",
        "peer": peer,
        "what": what,
        "above_ms": threshold,
        "logged": len(durations),
        "p50_ms": report.quantile(durations, 0.5) if durations else None,
        "p99_ms": report.quantile(durations, 0.99) if durations else None,
        "max_ms": max(durations, default=threshold),
    }


# -- small tools -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _on(placement: Placement) -> Iterator[None]:
    """Processes started in the block run where the peers do."""
    if not placement.clients:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, placement.clients)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _slow_log(ground: Ground, microseconds: int) -> Iterator[Callable[[], list[float]]]:
    """Lets the server log slow calls; gives a function for the milliseconds of the scripts among them.

    The log is never emptied. Thousands of entries freed at once leave so many small pieces of memory that the next larger
    piece that a server with glibc's malloc asks for takes 50 to 80 ms; that would be in one of the scripts measured here.
    """
    client = ground.client
    client.config_set("slowlog-max-len", 100_000)
    before = client.slowlog_get(1)
    last = before[0]["id"] if before else -1
    client.config_set("slowlog-log-slower-than", microseconds)

    def durations() -> list[float]:
        return [
            entry["duration"] / 1000
            for entry in client.slowlog_get(100_000)
            if entry["id"] > last and str(entry["command"]).lstrip("b'").upper().startswith("EVAL")
        ]

    try:
        yield durations
    finally:
        client.config_set("slowlog-log-slower-than", -1)


def _calls(ground: Ground, monitor: Any) -> int:
    """What clients have sent since the monitor began, without what scripts called and without our own."""
    ground.client.echo("here")
    count = 0
    while (seen := monitor.next_command())["command"] != "ECHO here":
        count += seen["client_type"] not in ("lua", "unix")  # this program comes through the unix socket
    return count


def _short(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def _revision() -> str:
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    dirty = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, text=True, check=False).stdout
    return f"{head}{' with changes' if dirty.strip() else ''}" or "unknown"


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One benchmark at a time on this machine."""
    environments.HOME.mkdir(parents=True, exist_ok=True)
    with (environments.HOME / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another benchmark is running: waiting for its end …", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller rounds: about 4 minutes")
    parser.add_argument("--all", action="store_true", help="all peers and variants")
    parser.add_argument("--servers", default=",".join(KINDS), help="which: %(default)s")
    parser.add_argument("--cases", default=",".join(CASES), help="which: %(default)s")
    parser.add_argument("--peers", help=f"which: {','.join([*CORE, *OTHERS])}")
    parser.add_argument("--rounds", type=int, help="how often each peer has its turn")
    parser.add_argument("--tries", type=int, default=3, help="how often a disturbed measurement is tried (%(default)s)")
    args = parser.parse_args()
    scale = QUICK if args.quick else FULL
    if args.rounds:
        scale = Scale(**{**vars(scale), "rounds": args.rounds})
    chosen = args.peers.split(",") if args.peers else CORE + OTHERS * args.all
    with _alone():
        started = time.monotonic()
        RESULTS.unlink(missing_ok=True)
        bench = Bench([Peer(spec) for spec in chosen], scale, args.tries)
        bench.emit(
            case="run", machine=machine(), revision=_revision(), load=round(os.getloadavg()[0], 2), scale=vars(scale),
            placement={name: [sorted(place.server), sorted(place.clients)] for name, place in bench.places.items()},
        )  # fmt: skip
        for peer in bench.peers:
            bench.emit(case="peer", peer=peer.spec, versions=peer.versions, settings=peer.settings)
        for kind in args.servers.split(","):
            bench.run(kind, args.cases.split(","))
        print(f"{(time.monotonic() - started) / 60:.1f} minutes")
        report.main()
    sys.exit(bench.failed)


if __name__ == "__main__":
    main()
