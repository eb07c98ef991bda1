"""Cron patterns name the times that Node's cron-parser names (expected: what its 4.9.0 and 5.10.3 answered).

Where the clocks change see also tests/property/test_cron_dst.py, and beside Node tests/store/test_cron_beside_node.py.
"""

from __future__ import annotations

import time
import zoneinfo
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest

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


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("0 0 * * FRIL", ["2026-01-30T00:00:00", "2026-02-27T00:00:00", "2026-03-27T00:00:00"]),
        ("0 0 * * 7L", ["2026-01-25T00:00:00", "2026-02-22T00:00:00", "2026-03-29T00:00:00"]),
        ("0 0 * * 7#1", ["2026-01-04T00:00:00", "2026-02-01T00:00:00", "2026-03-01T00:00:00"]),
        ("0 0 * * 1L,3", ["2026-01-07T00:00:00", "2026-01-14T00:00:00", "2026-01-21T00:00:00"]),
        ("0 0 15,L * *", ["2026-01-15T00:00:00", "2026-01-31T00:00:00", "2026-02-15T00:00:00"]),
        ("0 0 1 * 5L", ["2026-01-30T00:00:00", "2026-02-01T00:00:00", "2026-02-27T00:00:00"]),
        ("0 0 ?/2 * 1", ["2026-01-03T00:00:00", "2026-01-05T00:00:00", "2026-01-07T00:00:00"]),
        ("0 5-5/2 * * *", ["2026-01-01T05:00:00", "2026-01-02T05:00:00", "2026-01-03T05:00:00"]),
        ("0 0 * * MON/2", ["2026-01-02T00:00:00", "2026-01-04T00:00:00", "2026-01-05T00:00:00"]),
        ("0 0 30 2 1", ["2026-02-02T00:00:00", "2026-02-09T00:00:00", "2026-02-16T00:00:00"]),
        ("0 0 * 2 1#5", ["2044-02-29T00:00:00", "2072-02-29T00:00:00", "2112-02-29T00:00:00"]),
        ("@MIDNIGHT", ["2026-01-02T00:00:00", "2026-01-03T00:00:00", "2026-01-04T00:00:00"]),
        ("  0\t0  * * *\n", ["2026-01-02T00:00:00", "2026-01-03T00:00:00", "2026-01-04T00:00:00"]),
    ],
)  # fmt: skip
def test_reads_the_rarer_forms(pattern: str, expected: list[str]) -> None:
    assert times(pattern, "2026-01-01") == expected


@pytest.mark.parametrize(
    ("pattern", "spring", "autumn"),
    [
        ("0 * * * *", ["1:00", "3:00", "4:00"], ["1:00", "2:00", "2:00", "3:00", "4:00"]),
        ("0 0-23 * * *", ["1:00", "3:00", "4:00"], ["1:00", "2:00", "2:00", "3:00", "4:00"]),
        ("0 */2 * * *", ["4:00"], ["2:00", "2:00", "4:00"]),
        ("0 0/2 * * *", ["4:00"], ["2:00", "2:00", "4:00"]),
        ("*/30 2 * * *", [], ["2:00", "2:30", "2:00", "2:30"]),
        ("0 0-22/2 * * *", ["3:00", "4:00"], ["2:00", "4:00"]),
        ("0 2,4 * * *", ["3:00", "4:00"], ["2:00", "4:00"]),
        ("30 1-3 * * *", ["1:30", "3:00", "3:30"], ["1:30", "2:30", "3:30"]),
        ("0,30 2 * * *", ["3:00"], ["2:00", "2:30"]),
        ("0 2,3 * * *", ["3:00"], ["2:00", "3:00"]),
        ("30 30 2 * * *", ["3:00"], ["2:30"]),
        ("*/30 30 2 * * *", ["3:00"], ["2:30", "2:30"]),
    ],
)
def test_the_border_between_what_repeats_and_times_of_day(pattern: str, spring: list[str], autumn: list[str]) -> None:
    zone = ZoneInfo("Europe/Berlin")
    for date, expected in (("2026-03-29", spring), ("2026-10-25", autumn)):
        moment = datetime.fromisoformat(f"{date}T00:30").replace(tzinfo=zone)
        found = []
        while (moment := successor(pattern, moment, "Europe/Berlin").astimezone(zone)).hour < 5:
            if moment.date().isoformat() != date:
                break
            found.append(f"{moment.hour}:{moment.minute:02}")
        assert found == expected


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


def test_without_a_zone_this_machines_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    assert times("0 0 * * *", "2026-01-01", None, 1) == ["2026-01-01T18:15:00"]
    monkeypatch.delenv("TZ")
    local = successor("0 0 * * *", datetime(2026, 1, 1, tzinfo=UTC)).astimezone()
    assert (local.hour, local.minute) == (0, 0)


@pytest.mark.parametrize(
    "pattern",
    ["", "* * * *", "0 0 0 1 1 ? 2027", "60 * * * *", "60 * * * * *", "10-5 * * * *", "0 0 15W * *", "H * * * *",
     "0 0 31 2 *", "@often", "0 0 * * FRI-MON", "0 0 30,31 2 ?", "0 0 31 4,6,9,11 *", "0 0 LW * *", "0 0 L/2 * *",
     "0 0 * * L", "0 0 * * 1#6", "*/0 * * * *", "5-5/0 * * * *", "1/2/3 * * * *", "² * * * *", "٣ * * * *",
     "1" * 5000 + " * * * *", "0," * 5000 + "0 * * * *", "0 0 * * *\0"],
)  # fmt: skip
def test_refuses_what_cannot_be_read_and_says_what_can(pattern: str) -> None:
    with pytest.raises(InvalidOption, match="five fields") as caught:
        successor(pattern, datetime(2026, 1, 1, tzinfo=UTC), "UTC")
    assert repr(pattern)[:50] in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("60 * * * * *", "'60' is no second: 0 to 59;"),
        ("61 * * * *", "'61' is no minute: 0 to 59;"),
        ("* 10-5 * * *", "'10-5' is no hour: 0 to 23; .*ranges that rise"),
        ("0 0 32 * *", "'32' is no day of the month: 1 to 31, or L for the last one;"),
        ("0 0 15W * *", "'15W' is no day of the month"),
        ("0 0 */0 * *", r"'\*/0' is no day of the month"),
        ("0 0 1 * foo", "'foo' is no weekday: 0 to 7 .*SUN to SAT"),
        ("0 0 1 13 mon", "'13' is no month: 1 to 12, or JAN to DEC;"),
        ("0 0 30,31 feb *", "no month of its field 'feb' has a day of '30,31'"),
        ("0 0 * *", "it has 4 fields"),
        ("@often", "it is empty, longer than 1000 characters, or has some that mean nothing here"),
    ],
)
def test_says_which_field_cannot_be_read_and_what_it_can_hold(pattern: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        successor(pattern, datetime(2026, 1, 1, tzinfo=UTC), "UTC")


def test_refuses_a_moment_without_a_zone() -> None:
    with pytest.raises(InvalidOption, match=r"datetime\.now\(UTC\)"):
        successor("* * * * *", datetime.fromisoformat("2026-01-01"), "UTC")


def test_after_the_last_year_there_is_nothing() -> None:
    with pytest.raises(InvalidOption, match="9999"):
        successor("0 0 1 1 *", datetime(9999, 6, 1, tzinfo=UTC), "UTC")


@pytest.mark.parametrize(
    "pattern", ["0 0 29 2 *", "0 0 * 2 1#5", "0 0 L * 5", "0 12 31 12 5L", "*/20 * 29 2 ?", "*/9 */5 29 2 *"]
)
def test_a_rare_time_is_found_at_once(pattern: str) -> None:
    for zone in sorted(available_timezones()):
        best = min(seconds_for(pattern, zone) for _ in range(3))
        assert best < 0.005, f"{best * 1000:.1f} ms in {zone}"


def seconds_for(pattern: str, zone: str) -> float:
    after = datetime(2044, 3, 1, tzinfo=UTC)
    start = time.perf_counter()
    successor(pattern, after, zone)
    return time.perf_counter() - start


def test_a_time_that_never_comes_is_refused_at_once() -> None:
    start = time.perf_counter()
    for _ in range(20):
        with pytest.raises(InvalidOption):
            successor("0 0 31 2 *", datetime(2026, 1, 1, tzinfo=UTC), "Europe/Berlin")
    assert time.perf_counter() - start < 1


def test_utc_needs_no_time_zone_data() -> None:
    zoneinfo.reset_tzpath(to=[])
    ZoneInfo.clear_cache()
    try:
        assert times("0 9 * * *", "2026-01-01", "UTC", 1) == ["2026-01-01T09:00:00"]
    finally:
        zoneinfo.reset_tzpath()


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd"])
def test_refuses_an_unknown_zone(zone: str) -> None:
    with pytest.raises(InvalidOption, match="Europe/Berlin"):
        successor("* * * * *", datetime(2026, 1, 1, tzinfo=UTC), zone)
