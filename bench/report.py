"""Makes RESULTS.md from results.jsonl and NOTES.md: ``python -m bench.report``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NOISE = 0.15
"""Cores of foreign processor time above which a measurement is repeated."""

SAME = 1.005
"""Up to this ratio a figure counts as no more than another: the servers' own tables come in such steps."""

OURS, NODE, PYTHON, FLOOR = "echomq", "bullmq_node", "bullmq_py", "floor"
NAMES = {OURS: "EchoMQ", NODE: "Node bullmq", PYTHON: "BullMQ Python", FLOOR: "the machine itself"}

Row = dict[str, Any]


_SETTING = ("case", "server", "peer", "mode", "jobs", "concurrency", "placement", "waiting", "what")


class Rows:
    """The rows of one run. Of a setting that has rows which nothing disturbed, only those count."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.all = list(rows)
        quiet = {_setting(row) for row in self.all if row.get("noisy") is False}
        self.rows = [row for row in self.all if not row.get("noisy") or _setting(row) not in quiet]

    def of(self, case: str, **wanted: Any) -> list[Row]:
        return [
            row
            for row in self.rows
            if row["case"] == case and all(row.get(key) == value for key, value in wanted.items())
        ]

    def adds(self, mode: str, **wanted: Any) -> list[Row]:
        """Of the largest job count only: that of the drains at concurrency 100."""
        rows = self.of("add", mode=mode, placement="split", **wanted)
        most = max((row["jobs"] for row in rows), default=0)
        return [row for row in rows if row["jobs"] == most]

    def values(self, field: str, case: str, **wanted: Any) -> list[float]:
        return [row[field] for row in self.of(case, **wanted) if row.get(field) is not None]


def _setting(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in _SETTING)


class Value:
    """A figure with its spread."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def __bool__(self) -> bool:
        return bool(self.values)

    @property
    def middle(self) -> float:
        return statistics.median(self.values)

    def show(self, digits: int = 0) -> str:
        if not self.values:
            return "–"
        low, high = min(self.values), max(self.values)
        spread = "" if len(self.values) == 1 else f" ({low:,.{digits}f}–{high:,.{digits}f})"
        return f"{self.middle:,.{digits}f}{spread}"


def table(head: list[str], body: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(line) + " |" for line in body)])


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def name(peer: str) -> str:
    return NAMES.get(peer, peer)


# -- the targets -------------------------------------------------------------------------------------------------------


class Targets:
    """The table of the targets on one server."""

    def __init__(self, rows: Rows, server: str) -> None:
        self.rows, self.server = rows, server
        self.body: list[list[str]] = []

    def value(self, field: str, case: str, peer: str, **wanted: Any) -> Value:
        return Value(self.rows.values(field, case, server=self.server, peer=peer, **wanted))

    def line(
        self,
        what: str,
        ours: Value,
        theirs: Value,
        bound: str,
        *,
        most: float | None = None,
        least: float | None = None,
        digits: int = 0,
    ) -> None:
        """A figure against Node's: at most, or at least, so many times."""
        if not ours or not theirs:
            return
        ratio = ours.middle / theirs.middle if theirs.middle else float("inf")
        met = ratio <= most if most is not None else ratio >= (least or 0)
        self.body.append(
            [what, theirs.show(digits), ours.show(digits), f"{ratio:.2f}", bound, "yes" if met else "**no**"]
        )

    def plain(self, what: str, theirs: str, ours: str, bound: str, met: bool) -> None:
        self.body.append([what, theirs, ours, "", bound, "yes" if met else "**no**"])

    def make(self) -> str:
        self._rates()
        self._latency()
        self._costs()
        self._size()
        return table(["", "Node bullmq", "EchoMQ", "ratio", "target", "met"], self.body)

    def _rates(self) -> None:
        for concurrency, least in ((100, 2.0), (1, 1.1)):
            wanted = {"concurrency": concurrency, "placement": "split"}
            ours, node = (self.value("rate", "drain", peer, **wanted) for peer in (OURS, NODE))
            self.line(
                f"drain, concurrency {concurrency}, jobs/s", ours, node, f"at least {least:g} × Node", least=least
            )
            python = self.value("rate", "drain", PYTHON, **wanted)
            if concurrency == 100 and ours and python:
                ratio = ours.middle / python.middle
                self.body.append(
                    ["– against BullMQ Python", f"{python.show()} (BullMQ Python)", ours.show(), f"{ratio:.1f}",
                     "at least 15 × BullMQ Python", "yes" if ratio >= 15 else "**no**"]
                )  # fmt: skip
        for mode, what, least in (("single", "add one by one", 1.0), ("bulk", "add in bulk", 2.0)):
            ours, node = (self._add("rate", peer, mode) for peer in (OURS, NODE))
            self.line(f"{what}, jobs/s", ours, node, f"at least {least:g} × Node", least=least)
        ours, node = (self._whole(peer) for peer in (OURS, NODE))
        self.line("server CPU, bulk add + drain at 100, µs/job", ours, node, "at most 0.5 × Node", most=0.5, digits=1)

    def _add(self, field: str, peer: str, mode: str) -> Value:
        return Value([row[field] for row in self.rows.adds(mode, server=self.server, peer=peer)])

    def _whole(self, peer: str) -> Value:
        add, drain = self._add("server_us", peer, "bulk"), self.value("server_us", "drain", peer, concurrency=100)
        return Value([sum(pair) for pair in zip(sorted(add.values), sorted(drain.values), strict=False)])

    def _latency(self) -> None:
        def pooled(case: str, **wanted: Any) -> list[float]:
            return [one for row in self.rows.of(case, server=self.server, **wanted) for one in row["latencies"]]

        floor, ours, node = pooled("wake"), pooled("pickup", peer=OURS), pooled("pickup", peer=NODE)
        if not floor or not ours:
            return
        for share, most in ((0.5, 2.0), (0.99, 1.6)):
            least, got = quantile(floor, share), quantile(ours, share)
            theirs = f"{quantile(node, share):.2f}" if node else "–"
            self.body.append(
                [f"pick-up latency p{share * 100:.0f}, ms (floor {least:.2f})", theirs, f"{got:.2f}",
                 f"{got / least:.2f} × floor", f"at most {most:g} × floor", "yes" if got <= most * least else "**no**"]
            )  # fmt: skip

    def _costs(self) -> None:
        commands = [self.value("commands_s", "idle", peer) for peer in (OURS, NODE)]
        if all(commands):
            ours, node = commands
            calls = self.value("calls_s", "idle", OURS)
            their_calls = self.value("calls_s", "idle", NODE)
            self.plain(
                "idle worker, commands/s (inside scripts too)", node.show(2), ours.show(2), "at most Node's",
                ours.middle <= node.middle * SAME,
            )  # fmt: skip
            self.plain(
                "idle worker, client calls/s", their_calls.show(2), calls.show(2), "at most 0.5", calls.middle <= 0.5
            )
        for what, value in (
            ("waiting", lambda peer: self._add("bytes", peer, "bulk")),
            ("completed", lambda peer: self.value("bytes", "drain", peer, concurrency=100)),
        ):
            measure: Callable[[str], Value] = value
            self.line(f"memory per {what} job, bytes", measure(OURS), measure(NODE), "at most Node's", most=SAME)

    def _size(self) -> None:
        scripts = self.rows.of("script", server=self.server, peer=OURS)
        if scripts:
            longest = max(scripts, key=lambda row: row["max_ms"])
            node, floor = (
                max((row["max_ms"] for row in self.rows.of("script", server=self.server, peer=peer)), default=0)
                for peer in (NODE, FLOOR)
            )
            self.plain(
                f"longest script, ms (floor {floor:.1f})" if floor else "longest script, ms",
                f"{node:.1f}",
                f"{longest['max_ms']:.1f} ({longest['what']})",
                "at most 5",
                longest["max_ms"] <= 5,
            )
        self._large()

    def _large(self) -> None:
        found = self.rows.of("size", server=self.server)
        rates = {
            size: Value([row["rate"] for row in found if row["waiting"] == size])
            for size in {row["waiting"] for row in found}
        }
        empty = rates.pop("empty", None)
        for size, value in rates.items() if empty else ():
            share = value.middle / empty.middle
            self.body.append(
                [f"drain at 100 with {size} waiting and completed, jobs/s", "", f"{value.show()}, empty: {empty.show()}",
                 f"{share:.2f}", "falls by less than 10 %", "yes" if share > 0.90 else "**no**"]
            )  # fmt: skip


# -- the other tables --------------------------------------------------------------------------------------------------


def costs(rows: Rows, server: str) -> str:
    """What a job costs each side, without the spread."""
    body = []
    for peer in peers(rows):
        drains = rows.of("drain", server=server, peer=peer, placement="split")
        if not drains:
            continue
        at = {many: [row for row in drains if row["concurrency"] == many] for many in (1, 10, 100)}
        one, bulk = (rows.adds(mode, server=server, peer=peer) for mode in ("single", "bulk"))
        picked = [ms for row in rows.of("pickup", server=server, peer=peer) for ms in row["latencies"]]
        body.append([
            name(peer),
            *(middle(at[many], "rate") for many in (1, 10, 100)),
            middle(one, "rate"),
            middle(bulk, "rate"),
            f"{middle(bulk, 'server_us', 1)} + {middle(at[100], 'server_us', 1)}",
            f"{middle(one, 'server_us', 1)} + {middle(at[1], 'server_us', 1)}",
            f"{middle(one, 'client_us')} / {middle(bulk, 'client_us')}",
            f"{middle(at[1], 'client_us')} / {middle(at[100], 'client_us')}",
            f"{middle(bulk, 'commands', 1)} + {middle(at[100], 'commands', 1)}",
            f"{quantile(picked, 0.5):.1f} / {quantile(picked, 0.99):.1f}" if picked else "–",
            "yes" if all(row.get("once", True) for row in drains) else "**NO**",
        ])  # fmt: skip
    head = [
        "", "drain c=1 /s", "c=10", "c=100", "add one by one /s", "in bulk /s", "server µs: bulk add + drain at 100",
        "one add + drain at 1", "client µs: add one / in bulk", "drain at 1 / 100", "commands: bulk add + drain at 100",
        "pick-up p50 / p99, ms", "each job once",
    ]  # fmt: skip
    return table(head, body)


def middle(rows: list[Row], field: str, digits: int = 0) -> str:
    values = [row[field] for row in rows if row.get(field) is not None]
    return f"{statistics.median(values):,.{digits}f}" if values else "–"


def placements(rows: Rows, server: str) -> str:
    found = {row["placement"] for row in rows.of("drain", server=server)}
    order = [place for place in ("split", "one core", "free") if place in found]
    body = []
    for place in order:
        both = [
            Value(rows.values("rate", "drain", server=server, peer=peer, concurrency=1, placement=place))
            for peer in (OURS, NODE)
        ]
        ratio = f"{both[0].middle / both[1].middle:.2f}" if all(both) else "–"
        body.append([place, both[1].show(), both[0].show(), ratio])
    return table(["server and worker", "Node bullmq /s", "EchoMQ /s", "ratio"], body)


def executors(rows: Rows, server: str) -> str:
    """Handlers in threads and in processes: ours, and the Python peers as they run theirs."""
    rates = {
        peer: Value(rows.values("rate", "executor", server=server, peer=peer))
        for peer in dict.fromkeys(row["peer"] for row in rows.of("executor", server=server))
    }
    best = max((value.middle for peer, value in rates.items() if not peer.startswith(OURS)), default=0.0)
    body = [
        [name(peer), value.show(), f"{value.middle / best:.2f}" if best and peer.startswith(OURS) else "–"]
        for peer, value in rates.items()
    ]
    return table(["drain at concurrency 100", "jobs/s", "× the best Python peer"], body)


def scripts(rows: Rows, server: str) -> str:
    def show(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}"

    body = [
        [
            f"{name(row['peer'])}, {row['what']}",
            f"{row['logged']:,} above {row['above_ms']:g} ms",
            *(show(row.get(key)) for key in ("p50_ms", "p99_ms", "max_ms")),
        ]
        for row in rows.of("script", server=server)
    ]
    return table(["", "calls", "p50 of them, ms", "p99", "longest"], body)


def idle(rows: Rows, server: str) -> str:
    body = [
        [name(row["peer"]), *(f"{row[key]:.2f}" for key in ("commands_s", "calls_s", "client_ms_s", "server_ms_s"))]
        for row in rows.of("idle", server=server)
    ]
    return table(["", "commands/s", "client calls/s", "client CPU ms/s", "server CPU ms/s"], body)


def peers(rows: Rows) -> list[str]:
    return [row["peer"] for row in rows.of("peer")]


# -- the page ----------------------------------------------------------------------------------------------------------


def head(rows: Rows) -> str:
    [run] = rows.of("run")
    machine, scale = run["machine"], run["scale"]
    servers = ordered(rows)
    noisy = sum(1 for row in rows.all if row.get("noisy"))
    measured = sum(1 for row in rows.all if "noisy" in row)
    split, *_ = run["placement"].values()
    place = (
        f"the server on core {split[0][0]}, all processes of the peers on core {split[1][0]}"
        if split[0]
        else "not pinned"
    )
    aside = "; they count only where no other exists" if noisy else ""
    return f"""# Results

Measured {run["at"][:10]} by `make bench`, revision {run["revision"]}, on {", ".join(servers)}.

{machine["cpu"]}, {machine["cores"]} cores, {machine["memory_gib"]} GiB, {machine["system"]}, Python {machine["python"]}.
Load when it began: {run["load"]}. Cores: {place}, for every peer alike, unless a table says otherwise.
Each figure is the median of {scale["rounds"]} rounds in which the peers took turns (A B, B A, …), with the lowest and the
highest in brackets; latencies are pooled over {scale["pickup_rounds"]} rounds of {scale["pickups"]}. {noisy} of {measured}
measurements had more than {NOISE} cores of other programs beside them even when repeated{aside}.
`README.md` says what each line means."""


def ordered(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["server"] for row in rows.rows if "server" in row))


def versions(rows: Rows) -> str:
    body = [
        [
            name(row["peer"]),
            ", ".join(f"{package} {version}" for package, version in row["versions"].items()),
            row["settings"],
        ]
        for row in rows.of("peer")
    ]
    return table(["", "versions", "settings"], body)


def page(rows: Rows, notes: str) -> str:
    parts = [head(rows)]
    for server in ordered(rows):
        parts += [f"## {server}", Targets(rows, server).make()]
        trips = rows.of("trip", server=server)
        if trips:
            parts.append(
                f"A bare client (uvloop, one protocol) makes {trips[0]['rate']:,.0f} round trips of an empty script a second, "
                f"one after another, at {trips[0]['client_us']:.0f} µs of its own each: the ceiling of a drain at "
                "concurrency 1 with one call a job."
            )
        for title, make in (
            ("What a job costs", costs), ("Where the cores matter: drain at concurrency 1", placements), ("Scripts", scripts),
            ("An idle worker", idle), ("Handlers in threads and in processes", executors),
        ):  # fmt: skip
            made = make(rows, server)
            if made.count("\n") > 1:
                parts += [f"### {title}", made]
    errors = [f"* {row['server']}, {row['of']}: `{row['error'].splitlines()[0]}`" for row in rows.of("error")]
    if errors:
        parts += ["## What went wrong", "\n".join(errors)]
    parts += ["## Versions and settings", versions(rows)]
    if notes:
        parts.append(notes.strip())
    return "\n\n".join(parts) + "\n"


def main() -> None:
    rows = Rows(json.loads(line) for line in (HERE / "results.jsonl").read_text().splitlines())
    notes = HERE / "NOTES.md"
    (HERE / "RESULTS.md").write_text(page(rows, notes.read_text() if notes.exists() else ""))
    print(f"{len(rows.all)} rows: bench/RESULTS.md")


if __name__ == "__main__":
    main()
