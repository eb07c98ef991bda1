"""Cron patterns, over cronsim: the next time that a pattern names after a moment.

The grammar is what Node's cron-parser reads: five fields, or six with the seconds first; lists, ranges, steps, names,
``L`` (last day of the month), ``5L`` (last Friday), ``1#2`` (second Monday), ``?`` as another ``*``, ``7`` as Sunday,
and ``@hourly`` and its like. Where both the day of the month and the weekday are restricted, either is enough.

Around a change of the clocks a job of every so many minutes or hours keeps its distance in real time; one at a fixed
time of day runs once a day, and if that time is skipped, at the first minute after the gap. (cron-parser moves the
latter by the length of the gap instead.)
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from pathlib import Path
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from echomq.errors import InvalidOption

_NAMED = {
    "@secondly": "* * * * * *",
    "@minutely": "* * * * *",
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@weekdays": "0 0 * * 1-5",
    "@weekends": "0 0 * * 0,6",
}


def successor(pattern: str, after: datetime, zone: str | None = None) -> datetime:
    """The first time after ``after`` that the pattern names, as an aware datetime in UTC.

    Args:
        pattern: five or six fields, or one of ``@daily`` and its like.
        after: an aware datetime; the answer is later than it.
        zone: the name of the time zone that the fields mean, such as ``"Europe/Berlin"``; None is that of this machine.

    Raises:
        InvalidOption: the pattern or the zone cannot be read, or the pattern names no time at all.

    >>> successor("30 9 * * 1-5", datetime(2026, 1, 1, 9, 30, tzinfo=UTC), "UTC")
    datetime.datetime(2026, 1, 2, 9, 30, tzinfo=datetime.timezone.utc)
    """
    fields, second = _fields(pattern)
    shift = timedelta(seconds=second)
    start = (after.astimezone(UTC) - shift).astimezone(_zone(zone))
    try:
        found: datetime = next(CronSim(fields, start))
    except CronSimError as error:
        raise _unreadable(pattern, str(error)) from None
    except StopIteration:
        raise _unreadable(pattern, "it names no time in the next fifty years") from None
    return found.astimezone(UTC) + shift


@lru_cache(maxsize=1024)
def _fields(pattern: str) -> tuple[str, int]:
    """The pattern as cronsim reads it, and the seconds to add to what that answers."""
    fields = _NAMED.get(pattern.strip().lower(), pattern).replace("?", "*").split()
    if len(fields) not in (5, 6):
        raise _unreadable(pattern, f"it has {len(fields)} fields")
    second = 0
    if len(fields) == 6 and fields[0].isdecimal() and int(fields[0]) < 60:
        # At one second of the minute: the pattern without it, moved; cronsim knows skipped times for five fields only.
        second = int(fields.pop(0))
    # A step from "*" restricts a day as any other list does: cronsim reads it as unrestricted.
    for position, days in ((-3, "1-31"), (-1, "0-6")):
        if fields[position].startswith("*/") and fields[position] != "*/1":
            fields[position] = days + fields[position][1:]
    return " ".join(fields), second


def _unreadable(pattern: str, reason: str) -> InvalidOption:
    return InvalidOption(
        f"cron pattern {pattern!r} cannot be used: {reason}. A pattern has five fields (minute, hour, day of month, "
        "month, weekday), or six with the seconds first, or is one of " + ", ".join(_NAMED)
    )


def _zone(name: str | None) -> tzinfo:
    if name is None:
        return _local_zone()
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise InvalidOption(
            f"time zone {name!r} is not known here: it must be a name such as 'Europe/Berlin' or 'UTC' "
            "(where the system has no time zones, install the package tzdata)"
        ) from None


def _local_zone() -> tzinfo:
    """This machine's zone with its rules, where they can be read; else its offset as it is now."""
    name = os.environ.get("TZ", "").removeprefix(":")
    try:
        if name:
            return ZoneInfo(name)
        with Path("/etc/localtime").open("rb") as rules:
            return ZoneInfo.from_file(rules)
    except (ValueError, OSError, LookupError):
        offset = datetime.now().astimezone().tzinfo
        return offset if offset is not None else UTC
