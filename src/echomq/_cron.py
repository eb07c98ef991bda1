"""Cron patterns: the next time that a pattern names after a moment. cronsim reads the fields, the walk is our own.

The grammar is what Node's cron-parser reads: five fields, or six with the seconds first; lists, ranges, steps, names,
``L`` (last day of the month), ``5L`` or ``FRIL`` (last Friday), ``1#2`` (second Monday), ``?`` as another ``*``, ``7``
as Sunday, and ``@hourly`` and its like. Where both the day of the month and the weekday are restricted, either is
enough.

**When the clocks change.** Each pattern is of one of two kinds, which cron tells apart by how it is written:

* It *repeats*, if the minute or the hour has a ``*`` or a step without an end (``*``, ``*/15``, ``0/15``, ``?``), or
  names all its values (``0-23``): ``0 * * * *``, ``*/15 9-17 * * *``, ``0 */2 * * *``. It runs at every real minute
  whose local date and time match: in a repeated hour twice, in a skipped one not at all.
* Else it names *times of day*: ``30 2 * * *``, ``0,30 9-17 * * 1-5``, ``30 1-3 * * *``, ``0 0-12/4 * * *``. Each of its
  times runs once on each of its dates: in a repeated hour at the first occurrence only; a skipped one at the first valid
  minute after the gap. Several that fall on that minute are one run.

Where both could be argued, the way of writing decides, so that either can be had. ``0 */2 * * *`` asks for a distance,
so it repeats; the same hours as a list are times of day. ``30 1-3 * * *`` asks for 1:30, 2:30 and 3:30, each of which is
owed on each date. ``*/15 2 * * *`` repeats, so it has no run on a date without 2 o'clock, and eight on one with two;
``0,15,30,45 2 * * *`` has one at 3:00, and four.

What follows for the odd zones: where the clocks move by half an hour (Australia/Lord_Howe), two hourly runs are then 30 or
90 minutes apart; where the last hour of a date is skipped (America/Nuuk), what was due in it runs at 0:00 of the next
date; and where a whole date is (Pacific/Apia, 30 December 2011), its times of day are one run, at 0:00 of the next.

**Node's cron-parser** (4.9.0 in BullMQ 5, 5.10.3 in BullMQ 6) names the same times wherever no clock changes, and others
here, so that around a change a schedule's next time depends on who starts the iteration before it:

* A skipped time of day runs later by the length of the gap (2:30 at 3:30, not at 3:00). If the gap begins or ends at
  midnight (America/Havana, Asia/Beirut, America/Nuuk), or is of two hours (Antarctica/Troll, 4.9.0), that date has none.
* A skipped time of a repeating pattern with restricted hours is moved like that too: ``0 */2 * * *``, ``*/15 2 * * *``.
* In a repeated hour such a pattern runs once. A time of day runs twice where clocks do not move by an hour: with 4.9.0 in
  Australia/Lord_Howe, Pacific/Chatham and Antarctica/Troll, with 5.10.3 in the latter at some times. Of two midnights
  (America/Havana) 5.10.3 takes the second.
* In Australia/Lord_Howe 5.10.3 leaves out runs of hourly patterns, or refuses to answer; 4.9.0 does as we do.
"""

from __future__ import annotations

import os
import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, date, datetime, time, timedelta, tzinfo
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
_FIELDS = {  # by their place from the end: the name of each, and what it can hold
    -6: ("second", "0 to 59"),
    -5: ("minute", "0 to 59"),
    -4: ("hour", "0 to 23"),
    -3: ("day of the month", "1 to 31, or L for the last one"),
    -2: ("month", "1 to 12, or JAN to DEC"),
    -1: ("weekday", "0 to 7 (0 and 7 are Sunday), SUN to SAT, 5L for the last Friday, 1#2 for the second Monday"),
}
_LONGEST = 1000
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)


def successor(pattern: str, after: datetime, zone: str | None = None) -> datetime:
    """The first time after ``after`` that the pattern names, as an aware datetime in UTC.

    Args:
        pattern: five or six fields, or one of ``@daily`` and its like.
        after: an aware datetime; the answer is later than it.
        zone: the name of the time zone that the fields mean, such as ``"Europe/Berlin"``; None is that of this machine.

    Raises:
        InvalidOption: the pattern or the zone cannot be read, the pattern names no time at all, or ``after`` is naive.

    >>> successor("30 9 * * 1-5", datetime(2026, 1, 1, 9, 30, tzinfo=UTC), "UTC")
    datetime.datetime(2026, 1, 2, 9, 30, tzinfo=datetime.timezone.utc)
    """
    fields = _read(pattern)
    if after.utcoffset() is None:
        raise InvalidOption(f"a time without a zone, {after!r}, is no moment: give it one, as in datetime.now(UTC)")
    clock = _zone(zone)
    try:
        moment = after.astimezone(UTC)
        return _next_match(fields, moment, clock) if fields.repeats else _next_time_of_day(fields, moment, clock)
    except OverflowError:
        raise _unreadable(pattern, f"it names no time between {after} and the end of the year {MAXYEAR}") from None


@dataclass(frozen=True, slots=True)
class _Fields:
    """What a pattern's fields say: values in rising order, Sunday as 0, the last day as CronSim.LAST."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int | tuple[int, int]]
    both_days: bool  # day of the month and weekday must match both, since one of them is unrestricted
    repeats: bool  # it asks for every so many minutes or hours, not for times of day

    def first_from(self, wall: datetime) -> datetime:
        """The first time on a clock that never changes, from this one on, that the fields match."""
        day = self._day_from(wall.date())
        if day == wall.date():
            found = self._time_from(wall.hour, wall.minute, wall.second)
            if found is not None:
                return datetime.combine(day, found)
            day = self._day_from(day + _DAY)
        return datetime.combine(day, time(self.hours[0], self.minutes[0], self.seconds[0]))

    def _time_from(self, hour: int, minute: int, second: int) -> time | None:
        if hour in self.hours:
            if minute in self.minutes:
                for value in self.seconds:
                    if value >= second:
                        return time(hour, minute, value)
            for value in self.minutes:
                if value > minute:
                    return time(hour, value, self.seconds[0])
        for value in self.hours:
            if value > hour:
                return time(value, self.minutes[0], self.seconds[0])
        return None

    def _day_from(self, start: date) -> date:
        year, month, day = start.year, start.month, start.day
        while year <= MAXYEAR:
            if month in self.months:
                first_weekday, length = monthrange(year, month)
                for number in range(day, length + 1):
                    if self._names(number, (first_weekday + number) % 7, length):
                        return date(year, month, number)
            year, month, day = (year, month + 1, 1) if month < 12 else (year + 1, 1, 1)
        raise OverflowError

    def _names(self, day: int, weekday: int, length: int) -> bool:
        by_day = day in self.days or (day == length and CronSim.LAST in self.days)
        by_weekday = (
            weekday in self.weekdays
            or (weekday, (day + 6) // 7) in self.weekdays
            or (day + 7 > length and (weekday, CronSim.LAST) in self.weekdays)
        )
        return by_day and by_weekday if self.both_days else by_day or by_weekday


def _next_match(fields: _Fields, after: datetime, zone: tzinfo) -> datetime:
    """The first real second after this moment whose local date and time match."""
    start = after.replace(microsecond=0) + _SECOND
    while True:
        wall = _wall(start, zone)
        ahead = fields.first_from(wall) - wall
        # Changes of the clocks matter at both ends only: after one near the start, times that have been may come again,
        # and one near the match moves it. Those in a long stretch between have no match near them. No zone has ever had
        # two changes within three days.
        end = start + min(ahead, 2 * _DAY)
        if _wall(end, zone) - wall != end - start:
            start = _change(start, end, zone)
        elif end - start == ahead:
            return end
        else:
            start = max(end, start + ahead - _DAY)


def _next_time_of_day(fields: _Fields, after: datetime, zone: tzinfo) -> datetime:
    """The first moment after this one at which a time of day is due."""
    wall = fields.first_from(_wall(after, zone).replace(microsecond=0) + _SECOND)
    while True:
        # A time that comes twice is read as the first of them, and a skipped one by the clock as it was before.
        before, behind = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        due = before if _wall(before, zone) == wall else _change(behind, before, zone)
        if due > after:
            return due
        # It comes a second time; so do all up to the change, which therefore have been.
        wall = fields.first_from(wall + (_change(before, behind, zone) - before))


def _wall(moment: datetime, zone: tzinfo) -> datetime:
    """What a clock on the wall shows then."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _change(start: datetime, end: datetime, zone: tzinfo) -> datetime:
    """The moment, after the start and up to the end, from which on the clocks are not as they were at the start."""
    shown = _wall(start, zone)
    same, changed = 0, int((end - start).total_seconds())
    while changed - same > 1:
        middle = (same + changed) // 2
        ahead = timedelta(seconds=middle)
        if _wall(start + ahead, zone) - shown == ahead:
            same = middle
        else:
            changed = middle
    return start + timedelta(seconds=changed)


@lru_cache(maxsize=1024)
def _read(pattern: str) -> _Fields:
    text = _NAMED.get(pattern.strip().lower(), pattern).upper().replace("?", "*")
    # cronsim would take digits and letters of other scripts, and the nearest working day, which Node does not know.
    if not re.fullmatch(rf"[0-9A-Z*/,#\s-]{{1,{_LONGEST}}}", text, re.ASCII):
        raise _unreadable(
            pattern, f"it is empty, longer than {_LONGEST} characters, or has some that mean nothing here"
        )
    fields = text.split()
    if len(fields) not in (5, 6):
        raise _unreadable(pattern, f"it has {len(fields)} fields")
    # A step in a range of one value leaves that value: cronsim reads it as a step without an end.
    fields = [re.sub(r"\b(\w+)-\1/0*[1-9]\d*", r"\1", field) for field in fields]
    # A step from "*" restricts a day as any other list does: cronsim reads it as unrestricted.
    for position, days in ((-3, "1-31"), (-1, "0-6")):
        if fields[position].startswith("*/") and fields[position] != "*/1":
            fields[position] = days + fields[position][1:]
    for number, name in enumerate(_WEEKDAYS):
        fields[-1] = fields[-1].replace(f"{name}L", f"{number}L")
    if "W" in fields[-3] or "L/" in fields[-3]:
        raise _unreadable(pattern, _wrong_field(pattern, -3))
    try:
        read = _cronsim(fields)
    except CronSimError:
        raise _unreadable(pattern, _what_is_wrong(pattern, fields)) from None
    return _Fields(
        seconds=tuple(sorted(read.seconds)),
        minutes=tuple(sorted(read.minutes)),
        hours=tuple(sorted(read.hours)),
        days=frozenset(read.days),
        months=frozenset(read.months),
        weekdays=frozenset((day[0] % 7, day[1]) if isinstance(day, tuple) else day % 7 for day in read.weekdays),
        both_days=read.day_and,
        repeats=_repeats(fields[-5], len(read.minutes) == 60) or _repeats(fields[-4], len(read.hours) == 24),
    )


def _cronsim(fields: list[str]) -> CronSim:
    return CronSim(" ".join(fields), datetime(2000, 1, 1, tzinfo=UTC))


def _what_is_wrong(pattern: str, fields: list[str]) -> str:
    """Why cronsim does not take these fields, which stand for the pattern's own."""
    for position in range(-len(fields), 0):
        alone = ["*"] * len(fields)
        alone[position] = fields[position]
        try:
            _cronsim(alone)
        except CronSimError:
            return _wrong_field(pattern, position)
    given = pattern.split()
    return f"no month of its field {given[-2]!r:.40} has a day of {given[-3]!r:.40}"


def _wrong_field(pattern: str, position: int) -> str:
    given = pattern.split()[position]
    name, values = _FIELDS[position]
    return f"{given!r:.40} is no {name}: {values}; also lists (1,3), ranges that rise (1-5) and steps (*/2, 1-5/2)"


def _repeats(field: str, is_full: bool) -> bool:
    return is_full or any("/" in part and "-" not in part for part in field.split(","))


def _unreadable(pattern: str, reason: str) -> InvalidOption:
    return InvalidOption(
        f"cron pattern {pattern!r:.100} cannot be used: {reason}. A pattern has five fields (minute, hour, day of month, "
        "month, weekday), or six with the seconds first, or is one of " + ", ".join(_NAMED)
    )


def _zone(name: str | None) -> tzinfo:
    if name is None:
        return _local_zone()
    if name == "UTC":  # also where there are no time zones
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise InvalidOption(
            f"time zone {name!r:.100} is not known here: it must be a name such as 'Europe/Berlin' or 'UTC' "
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
