"""Cron patterns name the times that Node's cron-parser names (expected: what its 4.9.0 and 5.10.3 answered)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq._cron import successor
from echomq.errors import InvalidOption


def times(pattern: str, after: str, zone: str | None = "UTC", count: int = 3) -> list[str]:
    moment = datetime.fromisoformat(after).replace(tzinfo=UTC)
    found = []
    for _ in range(count):
        moment = successor(pattern, moment, zone)
        found.append(moment.strftime("%Y-%m-%dT%H:%M:%S"))
    return found


@pytest.mark.parametrize(
    ("pattern", "after", "zone", "expected"),
    [
        ("0 0 * * 7", "2026-01-01", "UTC", ["2026-01-04T00:00:00", "2026-01-11T00:00:00", "2026-01-18T00:00:00"]),
        ("0 12 ? * MON", "2026-01-01", "UTC", ["2026-01-05T12:00:00", "2026-01-12T12:00:00", "2026-01-19T12:00:00"]),
        ("0 0 ? * ?", "2026-01-01", "UTC", ["2026-01-02T00:00:00", "2026-01-03T00:00:00", "2026-01-04T00:00:00"]),
        ("@daily", "2026-01-01", "UTC", ["2026-01-02T00:00:00", "2026-01-03T00:00:00", "2026-01-04T00:00:00"]),
        ("@yearly", "2026-01-01", "UTC", ["2027-01-01T00:00:00", "2028-01-01T00:00:00", "2029-01-01T00:00:00"]),
        ("5/15 * * * *", "2026-01-01", "UTC", ["2026-01-01T00:05:00", "2026-01-01T00:20:00", "2026-01-01T00:35:00"]),
        ("*/7 * * * *", "2026-01-01T00:50", "UTC",
         ["2026-01-01T00:56:00", "2026-01-01T01:00:00", "2026-01-01T01:07:00"]),
        ("0 0 13 * 5", "2026-01-01", "UTC", ["2026-01-02T00:00:00", "2026-01-09T00:00:00", "2026-01-13T00:00:00"]),
        ("0 0 */10 * 1", "2026-01-01", "UTC", ["2026-01-05T00:00:00", "2026-01-11T00:00:00", "2026-01-12T00:00:00"]),
        ("0 0 * * 5L", "2026-01-01", "UTC", ["2026-01-30T00:00:00", "2026-02-27T00:00:00", "2026-03-27T00:00:00"]),
        ("0 0 L * *", "2026-01-01", "UTC", ["2026-01-31T00:00:00", "2026-02-28T00:00:00", "2026-03-31T00:00:00"]),
        ("0 0 * * 1#2", "2026-01-01", "UTC", ["2026-01-12T00:00:00", "2026-02-09T00:00:00", "2026-03-09T00:00:00"]),
        ("0 0 * * SUN-TUE", "2026-01-01", "UTC", ["2026-01-04T00:00:00", "2026-01-05T00:00:00", "2026-01-06T00:00:00"]),
        ("0 0 29 2 *", "2026-01-01", "UTC", ["2028-02-29T00:00:00", "2032-02-29T00:00:00", "2036-02-29T00:00:00"]),
        ("*/5 * * * * *", "2026-01-01T00:00:00.500", "UTC",
         ["2026-01-01T00:00:05", "2026-01-01T00:00:10", "2026-01-01T00:00:15"]),
        ("0 0 0 * * 0", "2026-01-01", "UTC", ["2026-01-04T00:00:00", "2026-01-11T00:00:00", "2026-01-18T00:00:00"]),
        ("0,30 9-17/2 * * 1-5", "2026-01-01", "America/New_York",
         ["2026-01-01T14:00:00", "2026-01-01T14:30:00", "2026-01-01T16:00:00"]),
        ("0 0 * * MON,WED-FRI", "2026-01-01", "Asia/Kathmandu",
         ["2026-01-01T18:15:00", "2026-01-04T18:15:00", "2026-01-06T18:15:00"]),
        ("30 2 * * *", "2026-10-24", "Europe/Berlin",
         ["2026-10-24T00:30:00", "2026-10-25T00:30:00", "2026-10-26T01:30:00"]),
        ("0 * * * *", "2026-10-24T22:00", "Europe/Berlin",
         ["2026-10-24T23:00:00", "2026-10-25T00:00:00", "2026-10-25T01:00:00"]),
        ("30 * * * *", "2026-03-28T23:45", "Europe/Berlin",
         ["2026-03-29T00:30:00", "2026-03-29T01:30:00", "2026-03-29T02:30:00"]),
        ("*/30 * * * *", "2026-10-24T23:45", "Europe/Berlin",
         ["2026-10-25T00:00:00", "2026-10-25T00:30:00", "2026-10-25T01:00:00"]),
        ("0 2 * * *", "2026-03-28T23:00", "Europe/Berlin",
         ["2026-03-29T01:00:00", "2026-03-30T00:00:00", "2026-03-31T00:00:00"]),
        ("30 1 * * *", "2026-10-03", "Australia/Lord_Howe",
         ["2026-10-03T15:00:00", "2026-10-04T14:30:00", "2026-10-05T14:30:00"]),
    ],
)  # fmt: skip
def test_names_the_times_that_cron_parser_names(pattern: str, after: str, zone: str, expected: list[str]) -> None:
    assert times(pattern, after, zone) == expected


@pytest.mark.parametrize("pattern", ["30 2 * * *", "0 30 2 * * *"])
def test_a_skipped_time_runs_at_the_first_minute_after_the_gap(pattern: str) -> None:
    assert times(pattern, "2026-03-28T02:00", "Europe/Berlin") == [
        "2026-03-29T01:00:00",
        "2026-03-30T00:30:00",
        "2026-03-31T00:30:00",
    ]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "Pacific/Chatham", "Antarctica/Troll"])
def test_a_daily_job_runs_once_on_each_day_of_a_year(zone: str) -> None:
    days = []
    moment = datetime(2026, 1, 1, tzinfo=ZoneInfo(zone))
    for _ in range(365):
        moment = successor("45 2 * * *", moment, zone)
        days.append(moment.astimezone(ZoneInfo(zone)).date())
    assert len(set(days)) == 365
    assert days[-1] - days[0] == timedelta(days=364)


@given(
    st.sampled_from(
        ["* * * * * *", "17 */3 * * * *", "0 9 * * 1-5", "*/20 8-18 1,15 * *", "@hourly", "59 59 23 L * *"]
    ),
    st.integers(1_577_836_800_000, 2_208_988_800_000),
    st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Apia"]),
)
def test_the_answer_is_later_and_the_same_from_anywhere_before_it(pattern: str, ms: int, zone: str) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    found = successor(pattern, moment, zone)
    assert found > moment
    assert found.microsecond == 0
    between = moment + (found - moment) / 2
    assert successor(pattern, between, zone) == found


def test_without_a_zone_this_machines_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    assert times("0 0 * * *", "2026-01-01", None, 1) == ["2026-01-01T18:15:00"]
    monkeypatch.delenv("TZ")
    local = successor("0 0 * * *", datetime(2026, 1, 1, tzinfo=UTC)).astimezone()
    assert (local.hour, local.minute) == (0, 0)


@pytest.mark.parametrize(
    "pattern",
    ["", "* * * *", "0 0 0 1 1 ? 2027", "60 * * * *", "60 * * * * *", "10-5 * * * *", "0 0 15W * *", "H * * * *",
     "0 0 31 2 *", "@often", "0 0 * * FRI-MON"],
)  # fmt: skip
def test_refuses_what_cannot_be_read_and_says_what_can(pattern: str) -> None:
    with pytest.raises(InvalidOption, match="five fields") as caught:
        successor(pattern, datetime(2026, 1, 1, tzinfo=UTC), "UTC")
    assert repr(pattern) in str(caught.value)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd"])
def test_refuses_an_unknown_zone(zone: str) -> None:
    with pytest.raises(InvalidOption, match="Europe/Berlin"):
        successor("* * * * *", datetime(2026, 1, 1, tzinfo=UTC), zone)
