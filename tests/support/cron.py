"""Cron by brute force: every minute is looked at, and the two rules of ``echomq._cron`` are applied word by word.

Nothing here knows how the walk of ``echomq._cron`` goes: the fields are read by a matcher of its own, and the kind of each
expression is written beside it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

MINUTE = 60
DAY = 86_400
_NAMES = {name: str(number) for number, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))} | {
    name: str(number)
    for number, name in enumerate("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split(), start=1)
}  # fmt: skip

REPEATING = (
    "* * * * *",
    "*/5 * * * *",
    "*/7 * * * *",
    "0/20 * * * *",
    "17 * * * *",
    "0,30 * * * *",
    "0 0-23 * * *",
    "0 */2 * * *",
    "0 */3 * * 1-5",
    "15 0/4 * * *",
    "*/15 2 * * *",
    "*/10 0-3 * * *",
    "0-59 1 * * *",
    "0 * 29 2 *",
    "*/30 * * * SUN",
    "45 */6 L * *",
    "0 * 1,15 * 1",
    "*/20 * * * * *",
    "30 * * * * *",
    "5 */10 1 ? * *",
)
TIMES_OF_DAY = (
    "0 0 * * *",
    "30 2 * * *",
    "30 0 * * *",
    "45 1 * * *",
    "15 23 * * *",
    "30 1-3 * * *",
    "0 0-12/4 * * *",
    "0,15,30,45 2 * * *",
    "10,50 0-3,23 */2 * *",
    "0 9 * * MON-FRI",
    "59 23 L * *",
    "30 2 ? * 0L",
    "30 1 * * 7#1",
    "0 2 * MAR,NOV SUN#2",
    "0 3 1-7 * 6",
    "30 2 31 3 5L",
    "0 0 1,L jan-dec/3 *",
    "30 30 2 * * *",
    "*/30 0 1 * * 6,7",
    "0 15 0 1,15 * FRI",
)


class Expression:
    """A pattern as the brute force reads it."""

    def __init__(self, pattern: str, repeats: bool) -> None:
        texts = pattern.upper().replace("?", "*").split()
        if len(texts) == 5:
            texts.insert(0, "0")
        self.pattern = pattern
        self.repeats = repeats
        self.seconds = sorted(_values(texts[0], 0, 59))
        hours, minutes = _values(texts[2], 0, 23), _values(texts[1], 0, 59)
        self.minutes = frozenset(hour * 60 + minute for hour in hours for minute in minutes)
        self._months = _values(texts[4], 1, 12)
        self._day, self._weekday = texts[3], texts[5]
        self._known: dict[int, bool] = {}

    def on(self, ordinal: int) -> bool:
        if ordinal not in self._known:
            self._known[ordinal] = self._names(date.fromordinal(ordinal))
        return self._known[ordinal]

    def _names(self, day: date) -> bool:
        if day.month not in self._months:
            return False
        by_day = any(
            (day + timedelta(1)).day == 1 if part == "L" else day.day in _values(part, 1, 31)
            for part in self._day.split(",")
        )
        by_weekday = any(_is_weekday(day, part) for part in self._weekday.split(","))
        if "*" in (self._day, self._weekday):
            return by_day and by_weekday
        return by_day or by_weekday

    def __repr__(self) -> str:
        return repr(self.pattern)


def _is_weekday(day: date, part: str) -> bool:
    weekday = day.isoweekday() % 7
    name, _, place = part.partition("#")
    if place:
        return weekday == int(_NAMES.get(name, name)) % 7 and (day.day - 1) // 7 + 1 == int(place)
    if name.endswith("L"):
        return weekday == int(name[:-1]) % 7 and (day + timedelta(7)).month != day.month
    return weekday in {value % 7 for value in _values(name, 0, 6 if "*" in name else 7)}


def _values(text: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        ends = [str(low), str(high)] if span == "*" else span.split("-")
        first, *rest = (int(_NAMES.get(end, end)) for end in ends)
        last = rest[0] if rest else high if step else first
        found.update(range(first, last + 1, int(step or 1)))
    return frozenset(found)


EXPRESSIONS = (
    *(Expression(pattern, True) for pattern in REPEATING),
    *(Expression(pattern, False) for pattern in TIMES_OF_DAY),
)


@dataclass(eq=False)
class Window:
    """The minutes of a zone from one moment to another (seconds since 1970), each with what its clocks show."""

    zone: str
    start: int
    end: int
    shown: list[tuple[int, int]] = field(
        default_factory=list
    )  # of each minute: the date's ordinal, the minute of the day
    again: set[int] = field(default_factory=set)  # the minutes that show what an earlier one has shown
    skipped: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # what was left out just before a minute

    def __post_init__(self) -> None:
        clock = ZoneInfo(self.zone)
        seen: set[tuple[int, int]] = set()
        before: int | None = None
        for index, moment in enumerate(range(self.start, self.end, MINUTE)):
            local = datetime.fromtimestamp(moment, clock)
            now = (local.toordinal(), local.hour * 60 + local.minute)
            if now in seen:
                self.again.add(index)
            seen.add(now)
            self.shown.append(now)
            count = now[0] * 1440 + now[1]
            if before is not None and count > before + 1:
                self.skipped[index] = [divmod(missing, 1440) for missing in range(before + 1, count)]
            before = count

    def runs(self, expression: Expression) -> list[int]:
        """When the expression runs in these minutes (seconds since 1970)."""
        days = {day for day, _ in self.shown if expression.on(day)}
        minutes, start = expression.minutes, self.start
        matching = [index for index, (day, minute) in enumerate(self.shown) if minute in minutes and day in days]
        if not expression.repeats:
            matching = [index for index in matching if index not in self.again]
        runs = {start + index * MINUTE + second for index in matching for second in expression.seconds}
        if not expression.repeats:
            for index, missing in self.skipped.items():
                if any(minute in minutes and expression.on(day) for day, minute in missing):
                    runs.add(start + index * MINUTE)
        return sorted(runs)


@dataclass(frozen=True)
class History:
    """How the clocks of a zone, and of all that did as it did, changed in some years."""

    zone: str
    changes: tuple[int, ...]


def histories(first_year: int, last_year: int) -> list[History]:
    """One of each distinct history of offsets of the IANA zones."""
    start, end = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (first_year, last_year + 1))
    found: dict[Sequence[tuple[int, float]], History] = {}
    for name in sorted(available_timezones()):
        steps = tuple(_steps(ZoneInfo(name), start, end))
        found.setdefault(steps, History(name, tuple(moment for moment, _ in steps[1:])))
    return list(found.values())


def _steps(clock: ZoneInfo, start: int, end: int) -> Iterable[tuple[int, float]]:
    """The offset at the start, then each change with the offset after it; no zone has two within three days."""
    offset = _offset(clock, start)
    yield start, offset
    for probe in range(start, end, 3 * DAY):
        until = min(probe + 3 * DAY, end)
        after = _offset(clock, until)
        if after != offset:
            known = offset
            minutes = range(probe, until + MINUTE, MINUTE)
            place = bisect_right(minutes, False, key=lambda moment: _offset(clock, moment) != known)
            yield minutes[place], after
            offset = after


def _offset(clock: ZoneInfo, moment: int) -> float:
    offset = datetime.fromtimestamp(moment, clock).utcoffset()
    assert offset is not None
    return offset.total_seconds()
