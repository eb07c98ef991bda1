"""How ``echomq top`` looks: lines of text out of what was seen, for a terminal of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from echomq.cli import _text, _workers
from echomq.cli._top.watch import Seen, Spread, Watch
from echomq.models import WorkerInfo

KEYS: Final = "q quit   s sort   r reverse   / filter   ↑↓ select   p pause or resume"
_LEAST_NAME: Final = 16
_GAP: Final = 2
_LEAST_FOR_WORKERS: Final = 14
"""Lines that a terminal needs so that workers are shown, too."""


def number(value: int | None) -> str:
    """A number that fits in six characters."""
    if value is None:
        return "–"
    if value < 100_000:
        return f"{value:,}"
    if value < 1_000_000:
        return f"{value // 1000}k"
    return f"{value / 1e6:.2f}M" if value < 100_000_000 else f"{value / 1e6:,.0f}M"


def rate(value: float | None) -> str:
    """Jobs a second."""
    if value is None:
        return "–"
    return "0" if value < 0.05 else f"{value:.1f}" if value < 10 else number(round(value))


def _spread(value: Spread | None) -> str:
    return "–" if value is None else f"{_short(value.p50)}/{_short(value.p95)}"


def _short(seconds: float) -> str:
    return _text.duration(seconds).replace(" ", "").replace("min", "m")


def _oldest(seen: Seen, now: datetime) -> str:
    if not seen.waiting():
        return "–"
    return "?" if seen.oldest is None else _short(max((now - seen.oldest).total_seconds(), 0.0))


def _worker_count(seen: Seen) -> str:
    return "?" if seen.workers is None else str(_workers.connected(seen.workers))


def state(seen: Seen) -> tuple[str, str]:
    """What holds a queue up, and its style."""
    if seen.trouble is not None:
        return _text.one_line(seen.trouble, 200), "bold red"
    if seen.paused:
        return "paused", "yellow"
    if seen.limited_for > 0:
        return f"limited {_short(seen.limited_for)}", "yellow"
    if seen.waiting() and seen.workers is not None and not _workers.connected(seen.workers):
        return "no worker", "bold red"
    if seen.concurrency is not None and seen.waiting() and seen.counts.get("active", 0) >= seen.concurrency:
        return f"at most {seen.concurrency} at once", "yellow"
    return "", ""


@dataclass(frozen=True)
class _Column:
    """A column: the higher its rank, the earlier it goes where there is no room."""

    title: str
    width: int
    rank: int
    text: Callable[[Seen, datetime], str]
    key: Callable[[Seen], float] | None = None


def _count(title: str, name: str, rank: int) -> _Column:
    return _Column(
        title,
        6,
        rank,
        lambda seen, _: number(seen.counts.get(name)),  # type: ignore[call-overload]
        lambda seen: seen.counts.get(name, 0),  # type: ignore[call-overload]
    )


COLUMNS: Final = (
    _Column("WAIT", 6, 0, lambda seen, _: number(seen.waiting()) if seen.counts else "–", lambda seen: seen.waiting()),
    _count("DELAY", "delayed", 4),
    _count("ACTIVE", "active", 0),
    _count("DONE", "completed", 6),
    _count("FAILED", "failed", 1),
    _Column("IN/s", 6, 2, lambda seen, _: rate(seen.incoming), lambda seen: seen.incoming or 0.0),
    _Column("OUT/s", 6, 2, lambda seen, _: rate(seen.outgoing), lambda seen: seen.outgoing or 0.0),
    _Column(
        "OLDEST",
        7,
        1,
        _oldest,
        lambda seen: (datetime.now(UTC) - seen.oldest).total_seconds() if seen.oldest and seen.waiting() else 0.0,
    ),
    _Column(
        "WAITED 50/95%", 14, 5, lambda seen, _: _spread(seen.wait), lambda seen: seen.wait.p95 if seen.wait else 0.0
    ),
    _Column("RAN 50/95%", 14, 5, lambda seen, _: _spread(seen.run), lambda seen: seen.run.p95 if seen.run else 0.0),
    _Column("WORKERS", 7, 3, lambda seen, _: _worker_count(seen), lambda seen: _workers.connected(seen.workers or ())),
)
_STATE_WIDTH: Final = 12


@dataclass
class View:
    """What the user has chosen to see.

    Attributes:
        where: the server, in words.
        sort: the title of the column that orders the queues; empty for their names.
        reverse: the other way round.
        filter: what a queue's name has to contain.
        selected: the queue that keys are meant for, and whose workers are shown.
        prompt: what is asked or told in the last line, instead of the keys.
        on_screen: the queues that the last frame showed.
    """

    where: str
    sort: str = ""
    reverse: bool = False
    filter: str = ""
    selected: str | None = None
    prompt: str | None = None
    on_screen: list[str] = field(default_factory=list)

    def order(self, watch: Watch) -> list[Seen]:
        """The queues as they are shown: the largest first, or by name."""
        wanted = self.filter.lower()
        found = sorted((one for one in watch.seen.values() if wanted in one.queue.lower()), key=lambda one: one.queue)
        column = next((column for column in COLUMNS if column.title == self.sort), None)
        if column is not None and column.key is not None:
            found.sort(key=column.key, reverse=not self.reverse)
        elif self.reverse:
            found.reverse()
        return found

    def next_sort(self) -> None:
        """Orders by the next column."""
        titles = ["", *(column.title for column in COLUMNS)]
        self.sort = titles[(titles.index(self.sort) + 1) % len(titles)]

    def select(self, watch: Watch, step: int) -> None:
        """Goes so many queues down."""
        names = [one.queue for one in self.order(watch)]
        if names:
            at = names.index(self.selected) if self.selected in names else -1 if step > 0 else len(names)
            self.selected = names[min(max(at + step, 0), len(names) - 1)]


def draw(view: View, watch: Watch, width: int, height: int | None) -> list[Text]:
    """The lines of one frame. Without a height there are as many as it takes."""
    now = datetime.now(UTC)
    found = view.order(watch)
    if found and view.selected not in {one.queue for one in found}:
        view.selected = found[0].queue
    head = [_title(view, watch, now), _totals(watch)]
    foot = [Text(KEYS, "dim") if view.prompt is None else Text(_text.one_line(view.prompt, 500), "bold")]
    if height is None:
        workers = [line for one in found if one.workers for line in _worker_lines(one, now, None)]
        body, foot = _queue_lines(view, found, now, width, None), []
    else:
        selected = next((one for one in found if one.queue == view.selected), None)
        workers = []
        if selected is not None and height >= _LEAST_FOR_WORKERS:
            workers = list(_worker_lines(selected, now, height // 3))
        body = _queue_lines(view, found, now, width, height - len(head) - len(foot) - len(workers))
        body += [Text("")] * (height - len(head) - len(body) - len(workers) - len(foot))
    lines = [*head, *body, *workers, *foot]
    for line in lines:
        line.truncate(width)
    return lines if height is None else lines[:height]


def _title(view: View, watch: Watch, now: datetime) -> Text:
    line = Text.assemble(("echomq top", "bold"), "  ", view.where, "  ", f"{now.astimezone():%H:%M:%S}")
    if watch.away is not None:
        since, why = watch.away
        seen = "nothing was seen yet" if watch.at is None else f"seen at {watch.at.astimezone():%H:%M:%S}"
        gone = _text.duration(max((now - since).total_seconds(), 0.0))
        line.append("  ")
        line.append(f"SERVER AWAY for {gone} ({seen}): {_text.one_line(why, 300)}", "bold red")
    elif watch.at is None:
        line.append("  looking for queues …", "dim")
    return line


def _totals(watch: Watch) -> Text:
    all_of = list(watch.seen.values())
    paused = sum(one.paused for one in all_of)
    parts = [
        ("1 queue" if len(all_of) == 1 else f"{len(all_of):,} queues") + (f" ({paused:,} paused)" if paused else ""),
        f"{number(sum(one.waiting() for one in all_of))} wait",
        f"{number(sum(one.counts.get('active', 0) for one in all_of))} run",
        f"{number(sum(one.counts.get('failed', 0) for one in all_of))} failed",
        f"in {rate(sum(one.incoming or 0.0 for one in all_of))}/s",
        f"out {rate(sum(one.outgoing or 0.0 for one in all_of))}/s",
    ]
    return Text("   ".join(parts), "dim" if watch.away is not None else "")


def _queue_lines(view: View, found: Sequence[Seen], now: datetime, width: int, height: int | None) -> list[Text]:
    columns = _that_fit(width)
    room = width - sum(column.width + _GAP for column in columns) - _STATE_WIDTH - _GAP
    longest = max((cell_len(_text.one_line(one.queue, 200)) for one in found), default=0) + 1
    name_width = max(min(room, longest), _LEAST_NAME)
    heading = Text(set_cell_size(_marked("QUEUE", view, ""), name_width), "bold")
    for column in columns:
        heading.append(" " * _GAP + _marked(column.title, view, column.title).rjust(column.width))
    shown = _window(view, found, None if height is None else max(height - 1, 0))
    view.on_screen = [one.queue for one in shown]
    lines = [heading]
    for one in shown:
        style = "reverse" if height is not None and one.queue == view.selected else ""
        line = Text(set_cell_size(_text.one_line(one.queue, 200), name_width), style)
        for column in columns:
            text = " " * _GAP + column.text(one, now).rjust(column.width)
            line.append(text, "red" if column.title == "FAILED" and one.counts.get("failed") else "")
        words, colour = state(one)
        line.append(" " * _GAP + words, colour)
        lines.append(line)
    return lines if height is None else lines[: max(height, 0)]


def _marked(title: str, view: View, sort: str) -> str:
    if view.sort != sort:
        return title
    return title + ("▲" if view.reverse == (sort != "") else "▼")


def _that_fit(width: int) -> list[_Column]:
    columns = list(COLUMNS)
    while columns and _LEAST_NAME + _STATE_WIDTH + _GAP + sum(column.width + _GAP for column in columns) > width:
        columns.remove(max(columns, key=lambda column: (column.rank, columns.index(column))))
    return columns


def _window(view: View, found: Sequence[Seen], height: int | None) -> Sequence[Seen]:
    """The part of the queues that is shown, with the selected one in it."""
    if height is None or len(found) <= height:
        return found
    at = next((at for at, one in enumerate(found) if one.queue == view.selected), 0)
    start = min(max(at - height // 2, 0), len(found) - height)
    return found[start : start + height]


def _worker_lines(seen: Seen, now: datetime, height: int | None) -> Iterator[Text]:
    workers = seen.workers
    known = "not looked at yet" if workers is None else _workers.in_words(workers, "none")
    yield Text(f"── workers of {_text.one_line(seen.queue)}: {known} ", "bold")
    workers = workers or []
    room = len(workers) if height is None else max(height - 1, 0)
    for worker in workers[: room if len(workers) <= room else room - 1]:
        yield _worker_line(worker, now)
    if len(workers) > room:
        yield Text(f"   … {len(workers) - room + 1} more: echomq workers {_text.one_line(seen.queue)}", "dim")


def _worker_line(worker: WorkerInfo, now: datetime) -> Text:
    slots = f"{len(worker.jobs)}/{'?' if worker.slots is None else worker.slots}"
    line = Text(f"   {set_cell_size(_text.one_line(worker.name or '(no name)', 100), 28)} {slots:>9}")
    if worker.loop_lag is not None and worker.loop_lag >= 0.1:
        line.append(f"  lags {_short(worker.loop_lag)}", "yellow")
    if worker.paused:
        line.append("  paused", "yellow")
    if worker.is_connected is False:
        line.append("  not connected", "red")
    for job in worker.jobs[:20]:
        held = "" if job.since is None else f" {_short(max((now - job.since).total_seconds(), 0.0))}"
        line.append(f"  {_text.one_line(job.name, 30)} {_text.one_line(job.id, 40)}{held}")
    return line
