"""What ``echomq top`` draws, without a server: it fits any terminal, and says what holds a queue up."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from echomq import Queue
from echomq.cli._top import frame
from echomq.cli._top.watch import Seen, Spread, Watch
from echomq.models import CurrentJob, JobState, WorkerInfo

NOW = datetime.now(UTC)


def no_queue(name: str) -> Queue:
    raise AssertionError("nothing is asked")


def worker(name: str, **known: Any) -> WorkerInfo:
    return WorkerInfo(queue="orders", name=name, is_connected=True, last_seen=NOW, **known)


def lost(name: str) -> WorkerInfo:
    return WorkerInfo(queue="orders", name=name, is_connected=False, last_seen=NOW)


def seen(queue: str, counts: dict[JobState, int] | None = None, **known: Any) -> Seen:
    return Seen(queue, counts if counts is not None else {"waiting": 0, "active": 0, "failed": 0}, **known)


def watch(*all_seen: Seen) -> Watch:
    watch = Watch(no_queue, None)
    watch.seen = {one.queue: one for one in all_seen}
    watch.at = NOW
    return watch


def text(view: frame.View, found: Watch, width: int, height: int | None) -> list[str]:
    return [line.plain for line in frame.draw(view, found, width, height)]


@pytest.mark.parametrize("width", [1, 7, 20, 40, 60, 80, 100, 120, 160, 250])
@pytest.mark.parametrize("height", [1, 2, 3, 5, 13, 14, 24, 50])
def test_a_frame_fits_the_terminal(width: int, height: int) -> None:
    jobs = tuple(CurrentJob(str(number), "pack", NOW) for number in range(40))
    orders = seen(
        "注文" * 20,
        {"waiting": 12_345_678, "active": 99_999, "failed": 100_000, "completed": 1_000_000_000, "delayed": 7},
        oldest=NOW - timedelta(days=800, hours=23),
        wait=Spread(3_599, 86_399),
        run=Spread(0.0004, 59.9),
        incoming=123_456.7,
        outgoing=0.01,
        workers=[worker(f"w{number}" * 30, slots=100, jobs=jobs, loop_lag=2.5, paused=True) for number in range(60)],
    )
    many = watch(orders, *(seen(f"q{number}") for number in range(100)))
    many.away = (NOW, "the server is away " * 30)
    lines = frame.draw(frame.View("redis://somewhere", selected="注文" * 20), many, width, height)
    assert len(lines) == height
    assert max(line.cell_len for line in lines) <= width


def test_the_selected_queue_is_on_the_screen() -> None:
    many = watch(*(seen(f"q{number:02d}") for number in range(90)))
    view = frame.View("here")
    text(view, many, 80, 20)
    assert view.selected == "q00"
    for step, wanted in [(1, "q01"), (60, "q61"), (100, "q89"), (-1, "q88"), (-500, "q00")]:
        view.select(many, step)
        text(view, many, 80, 20)
        assert view.selected == wanted
        assert wanted in view.on_screen


@pytest.mark.parametrize(
    ("sort", "reverse", "order"),
    [("", False, "abc"), ("", True, "cba"), ("WAIT", False, "bac"), ("WAIT", True, "cab"), ("OUT/s", False, "cab")],
)
def test_order_and_filter(sort: str, reverse: bool, order: str) -> None:
    found = watch(
        seen("a", {"waiting": 2}, outgoing=1.0), seen("b", {"prioritized": 3}), seen("c", {"waiting": 1}, outgoing=2.0)
    )
    view = frame.View("here", sort=sort, reverse=reverse)
    assert "".join(one.queue for one in view.order(found)) == order
    view.filter = "B"
    assert [one.queue for one in view.order(found)] == ["b"]


def test_the_columns_can_be_gone_through() -> None:
    view = frame.View("here")
    titles = [view.sort]
    for _ in frame.COLUMNS:
        view.next_sort()
        titles.append(view.sort)
        assert any(f"{view.sort}▼" in line for line in text(view, watch(seen("a")), 200, 20))
    view.next_sort()
    assert view.sort == "" == titles[0]
    assert titles[1:] == [column.title for column in frame.COLUMNS]


def test_a_worker_that_is_not_connected_does_not_count() -> None:
    found = watch(seen("a", workers=[lost("w")]), seen("b", workers=[lost("w"), worker("v")]))
    lines = text(frame.View("here"), found, 200, None)
    at = next(line for line in lines if "WORKERS" in line).index("WORKERS")
    assert [line[at : at + 7].strip() for line in lines if line.startswith(("a ", "b "))] == ["0", "1"]
    assert "── workers of a: none (1 not connected) " in lines
    assert "── workers of b: 1 (1 not connected) " in lines


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"paused": True, "workers": []}, "paused"),
        ({"limited_for": 12.0, "workers": []}, "limited 12s"),
        ({"workers": []}, "no worker"),
        ({"workers": [lost("w")]}, "no worker"),
        ({"workers": [lost("w"), worker("v")]}, ""),
        ({"workers": None}, ""),
        ({"workers": [worker("w")], "concurrency": 2}, "at most 2 at once"),
        ({"workers": [worker("w")], "concurrency": 3}, ""),
        ({"trouble": "WRONGTYPE\nand so on", "paused": True}, "WRONGTYPE"),
    ],
)
def test_what_holds_a_queue_up(known: dict[str, Any], said: str) -> None:
    assert frame.state(seen("orders", {"waiting": 5, "active": 2}, **known))[0] == said


@pytest.mark.parametrize(
    ("write", "value", "written"),
    [
        (frame.number, 99_999, "99,999"), (frame.number, 100_000, "100k"), (frame.number, 1_234_567, "1.23M"),
        (frame.number, 123_456_789, "123M"), (frame.number, None, "–"), (frame.rate, 0.01, "0"), (frame.rate, 9.94, "9.9"),
        (frame.rate, 12.6, "13"), (frame.rate, None, "–"),
    ],
)  # fmt: skip
def test_numbers_are_short(write: Callable[[Any], str], value: float | None, written: str) -> None:
    assert write(value) == written


def test_a_spread() -> None:
    assert Spread.of([]) is None
    assert Spread.of([3.0]) == Spread(3.0, 3.0)
    assert Spread.of(float(number) for number in range(100)) == Spread(49.0, 94.0)
