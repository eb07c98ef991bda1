"""What holds for every pattern, moment and zone; and whatever is given as a pattern is read or refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo, available_timezones

from hypothesis import given
from hypothesis import strategies as st

from echomq._cron import successor
from echomq.errors import InvalidOption
from tests.support.cron import EXPRESSIONS

PATTERNS = st.sampled_from([expression.pattern for expression in EXPRESSIONS]) | st.sampled_from(
    ["@hourly", "@weekdays", "59 59 23 L * *", "0 0 29 2 *", "0 0 * 2 1#5"]
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = st.sampled_from(sorted(available_timezones()))
MOMENTS = st.integers(-90 * 31_557_600_000_000, 230 * 31_557_600_000_000).map(
    lambda us: EPOCH + timedelta(microseconds=us)
)
NAMES = [
    "@daily",
    "@",
    "MON",
    "JAN",
    "FRIL",
    "5L",
    "L",
    "LW",
    "15W",
    "1#2",
    "0#9",
    "H",
    "?",
    "*/0",
    "5-1",
    "60",
    "99999",
]


@given(PATTERNS, MOMENTS, ZONES)
def test_the_answer_is_later_and_the_same_from_anywhere_before_it(pattern: str, moment: datetime, zone: str) -> None:
    found = successor(pattern, moment, zone)
    assert found > moment
    assert found.tzinfo is UTC
    assert found.microsecond == 0
    assert successor(pattern, moment + (found - moment) / 2, zone) == found
    assert successor(pattern, found - timedelta(microseconds=1), zone) == found


@given(PATTERNS, MOMENTS, st.timedeltas(timedelta(0), timedelta(days=400)), ZONES)
def test_a_later_moment_has_no_earlier_answer(pattern: str, moment: datetime, later: timedelta, zone: str) -> None:
    assert successor(pattern, moment, zone) <= successor(pattern, moment + later, zone)


@given(PATTERNS, MOMENTS, ZONES, ZONES, st.integers(-1439, 1439))
def test_it_does_not_matter_in_which_zone_the_moment_is_given(
    pattern: str, moment: datetime, zone: str, other: str, minutes: int
) -> None:
    found = successor(pattern, moment, zone)
    assert successor(pattern, moment.astimezone(ZoneInfo(other)), zone) == found
    assert successor(pattern, moment.astimezone(timezone(timedelta(minutes=minutes))), zone) == found


FIELD = st.text("0123456789*/,-#?LW", max_size=8) | st.sampled_from(NAMES) | st.integers(0, 99).map(str)


def answer(pattern: str, after: datetime, zone: str) -> datetime | InvalidOption:
    """What ``successor`` returns or raises, which nothing else may be."""
    try:
        return successor(pattern, after, zone)
    except InvalidOption as error:
        return error


@given(st.text() | st.lists(FIELD, max_size=7).map(" ".join) | st.text("0123456789*/-,LW#?@ \t\n\0²٣", max_size=40))
def test_garbage_is_refused(pattern: str) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    found = answer(pattern, moment, "Europe/Berlin")
    if isinstance(found, InvalidOption):
        assert "five fields" in str(found)
        assert len(str(found)) < 1000
    else:
        assert found > moment


@given(st.text())
def test_garbage_is_no_zone(zone: str) -> None:
    found = answer("* * * * *", datetime(2026, 1, 1, tzinfo=UTC), zone)
    assert isinstance(found, datetime) or "time zone" in str(found)


@given(PATTERNS, st.datetimes(timezones=st.just(UTC)), ZONES)
def test_at_the_ends_of_the_calendar_there_is_an_answer_or_an_error(pattern: str, moment: datetime, zone: str) -> None:
    for after in (moment, datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)):
        found = answer(pattern, after, zone)
        assert found > after if isinstance(found, datetime) else "year" in str(found)
