"""``successor`` against a brute force that looks at every minute, where the clocks change and where they do not.

One zone stands for all that have had its offsets from 2020 to 2030. What a usual run draws depends on the seed of the
run (``--randomly-seed``); ``make torture`` looks at all of it.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echomq._cron import successor
from tests.support.cron import DAY, EXPRESSIONS, Expression, History, Window, histories

FIRST_YEAR, LAST_YEAR = 2020, 2030
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR = 3_600

OLDER = [
    ("Pacific/Apia", "2011-12-30T10:00"),  # skips a whole date
    ("Pacific/Kwajalein", "1993-08-21T12:00"),  # skips a whole date
    ("Pacific/Kwajalein", "1969-09-30T13:00"),  # 23 hours come again
    ("America/St_Johns", "2010-03-14T03:31"),  # skips an hour at 0:01
    ("America/St_Johns", "2010-11-07T02:31"),  # repeats an hour at 0:01, from the evening before
    ("America/Caracas", "2007-12-09T07:00"),  # repeats half an hour
    ("Asia/Pyongyang", "2018-05-04T15:00"),  # skips the last half hour of a date
    ("America/Sao_Paulo", "2018-11-04T03:00"),  # skips midnight
]


@pytest.fixture(scope="module")
def zones() -> list[History]:
    return histories(FIRST_YEAR, LAST_YEAR)


def around(zone: str, change: int) -> Window:
    """Three days before and after a change, and one before them, whose times may come again."""
    return Window(zone, change - 4 * DAY, change + 3 * DAY)


def plain_month(history: History) -> Window:
    """A month in which no clock changes, with a day before it."""
    starts = [datetime(year, month, 1, tzinfo=UTC) for year in range(FIRST_YEAR, LAST_YEAR) for month in range(1, 13)]
    moments = [int(start.timestamp()) for start in starts]
    plain = [
        moment
        for moment in moments
        if not any(moment - 2 * DAY < change < moment + 32 * DAY for change in history.changes)
    ]
    start = random.choice(plain)
    return Window(history.zone, start - DAY, start + 31 * DAY)


def from_start_to_end(window: Window, expression: Expression) -> None:
    """Each successor of a run is the next run, without a gap."""
    start = window.start + DAY
    expected = [run for run in window.runs(expression) if run >= start]
    found = []
    moment = EPOCH + timedelta(seconds=start, microseconds=-1)
    while True:
        moment = successor(expression.pattern, moment, window.zone)
        seconds = (moment - EPOCH) // timedelta(seconds=1)
        if seconds >= window.end:
            break
        found.append(seconds)
    different = sorted(set(found) ^ set(expected))
    assert found == expected, f"{expression} in {window.zone}: {[str(EPOCH + timedelta(seconds=s)) for s in different]}"


def from_anywhere(window: Window, expression: Expression, moments: Iterable[float]) -> None:
    """The successor of any moment is the first run after it."""
    runs = window.runs(expression)
    for moment in moments:
        after = EPOCH + timedelta(seconds=moment)
        found = (successor(expression.pattern, after, window.zone) - EPOCH).total_seconds()
        place = bisect_right(runs, moment)
        if place < len(runs):
            assert found == runs[place], f"{expression} after {after} in {window.zone}"
        else:
            assert found >= window.end, f"{expression} after {after} in {window.zone}"


def drawn(window: Window, count: int) -> list[float]:
    return [random.uniform(window.start + DAY, window.end) for _ in range(count)]


def near(change: int, count: int) -> list[float]:
    return [change - 1, change - 0.001, change] + [change + random.uniform(-3 * HOUR, 3 * HOUR) for _ in range(count)]


def test_where_clocks_change(zones: list[History]) -> None:
    assert len(EXPRESSIONS) == 40
    for history in zones:
        if not history.changes:
            continue
        change = random.choice(history.changes)
        window = around(history.zone, change)
        for expression in EXPRESSIONS:
            from_anywhere(window, expression, near(change, 4))
        for expression in random.sample(EXPRESSIONS, 5):
            from_start_to_end(window, expression)


def test_where_they_do_not(zones: list[History]) -> None:
    for history in random.sample(zones, 20):
        window = plain_month(history)
        for expression in EXPRESSIONS:
            from_anywhere(window, expression, drawn(window, 5))
        from_start_to_end(window, random.choice(EXPRESSIONS))


@pytest.mark.parametrize(("zone", "change"), OLDER)
def test_odd_changes_of_other_years(zone: str, change: str) -> None:
    moment = int(datetime.fromisoformat(change).replace(tzinfo=UTC).timestamp())
    window = around(zone, moment)
    assert window.again or window.skipped
    for expression in EXPRESSIONS:
        from_anywhere(window, expression, near(moment, 10))
        from_start_to_end(window, expression)


def changes(of: Iterable[History]) -> Iterator[tuple[str, int]]:
    return ((history.zone, change) for history in of for change in history.changes)


@pytest.mark.torture
def test_every_change_and_a_plain_month_of_every_zone(zones: list[History]) -> None:
    windows = 0
    for zone, change in changes(zones):
        window = around(zone, change)
        windows += 1
        for expression in EXPRESSIONS:
            from_start_to_end(window, expression)
            from_anywhere(window, expression, near(change, 10))
    for history in zones:
        window = plain_month(history)
        for expression in EXPRESSIONS:
            from_start_to_end(window, expression)
    assert windows > 500


def listed(low: int, high: int) -> st.SearchStrategy[str]:
    """A list of values and ranges, with steps or without: times of day, not repeating."""
    value = st.integers(low, high)
    span = st.tuples(value, value).map(lambda ends: f"{min(ends)}-{max(ends)}")
    stepped = st.tuples(span, st.integers(2, 7)).map(lambda parts: f"{parts[0]}/{parts[1]}")
    return st.lists(value.map(str) | span | stepped, min_size=1, max_size=3).map(",".join)


REPEATING = ("*", "?", "*/1", "*/2", "*/7", "0/10", "5/9", "3,*/8")
REPEATS = st.sampled_from(REPEATING)
DAYS = st.sampled_from(["*", "?"]) | st.sampled_from(["L", "1,L", "*/2"]) | listed(1, 31)
WEEKDAYS = (
    st.sampled_from(["*", "?"]) | st.sampled_from(["0L", "7L", "SUN", "1-7", "sat,6#1", "0#2", "MON#3"]) | listed(0, 7)
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_patterns_put_together_at_random(zones: list[History], data: st.DataObject) -> None:
    minute, hour = data.draw(REPEATS | listed(0, 59), "minute"), data.draw(REPEATS | listed(0, 23), "hour")
    pattern = f"{minute} {hour} {data.draw(DAYS, 'day')} * {data.draw(WEEKDAYS, 'weekday')}"
    expression = Expression(pattern, repeats=minute in REPEATING or hour in REPEATING)
    zone, change = data.draw(st.sampled_from(list(changes(zones))), "change")
    window = around(zone, change)
    offsets = data.draw(st.lists(st.floats(-3 * HOUR, 3 * HOUR), min_size=5, max_size=20), "moments")
    from_anywhere(window, expression, [change + offset for offset in offsets])
