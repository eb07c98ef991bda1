"""The roster: a CSV file with one enrolment a row, as a registrar's office exports it."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SEATS = 30
"""Seats of a course where the file has no column ``seats``."""

REQUIRED = ("learner", "course")

_LARGEST_LEARNER = 2**63 - 1
_LONGEST_COURSE = 100


class RosterError(ValueError):
    """The file cannot be used. The message names it and says what to do."""


@dataclass
class Roster:
    """What the file asks for.

    Attributes:
        rows: how many rows were read, good and bad.
        enrolments: learner and course of each good row. The same pair may come again: a duplicate is a good row.
        courses: each course that a good row names, and its seats.
        bad: the number of the line and what is wrong with it, for each bad row.
    """

    rows: int = 0
    enrolments: list[tuple[int, str]] = field(default_factory=list)
    courses: dict[str, int] = field(default_factory=dict)
    bad: list[tuple[int, str]] = field(default_factory=list)


def read(path: Path, most: int | None = None) -> Roster:
    """Reads a roster, up to ``most`` good rows.

    Columns: ``learner`` (a whole number), ``course``, and, if it likes, ``seats``: how many the course has. A course's first
    row says it; a later row that says otherwise is a bad one. Any other column is ignored.

    Raises:
        RosterError: the file cannot be read, is empty, lacks a column, or has no good row.
    """
    roster = Roster()
    for line, row in _rows(path):
        if most is not None and len(roster.enrolments) >= most:
            break
        roster.rows += 1
        try:
            learner, course, seats = _parse(row)
            if roster.courses.setdefault(course, seats) != seats:
                raise ValueError(f"seats {seats}: an earlier row says that {course!r} has {roster.courses[course]}")
        except ValueError as error:
            roster.bad.append((line, str(error)))
        else:
            roster.enrolments.append((learner, course))
    if not roster.rows:
        raise RosterError(f"{path}: has a header and no rows; add one row for each enrolment")
    if not roster.enrolments:
        line, why = roster.bad[0]
        raise RosterError(f"{path}: none of its {roster.rows} rows can be used; the first, in line {line}: {why}")
    return roster


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restkey="", restval="", strict=True)
            columns = reader.fieldnames
            if not columns:
                raise RosterError(f"{path}: is empty; its first line must name the columns: {', '.join(REQUIRED)}")
            reader.fieldnames = [column.strip().lower() for column in columns]
            missing = [column for column in REQUIRED if column not in reader.fieldnames]
            if missing:
                raise RosterError(
                    f"{path}: has no column {' and no column '.join(map(repr, missing))}; its first line is "
                    f"{','.join(columns)!r} and must name at least {', '.join(REQUIRED)}, separated by commas"
                )
            for row in reader:
                yield reader.line_num, row
    except OSError as error:
        raise RosterError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RosterError(f"{path}: is not text in UTF-8 (byte {error.start}); save it as CSV in UTF-8") from error
    except csv.Error as error:
        raise RosterError(f"{path}: is not a CSV file ({error}); save it as CSV, separated by commas") from error


def _parse(row: dict[str, str]) -> tuple[int, str, int]:
    if any(row.get("", "")):  # empty ones do no harm: spreadsheets write them
        raise ValueError("has more fields than the header has columns")
    course = row["course"].strip()
    if not course or len(course) > _LONGEST_COURSE or not course.isprintable():
        raise ValueError(f"course {course!r}: must be 1 to {_LONGEST_COURSE} printable characters")
    learner = _whole("learner", row["learner"], least=1)
    return learner, course, _whole("seats", row["seats"], least=0) if "seats" in row else SEATS


def _whole(column: str, text: str, *, least: int) -> int:
    text = text.strip()
    # Not int() alone, which also takes '1_000'. isdecimal() allows digits of every script, which a registrar does not use.
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and least <= int(text) <= _LARGEST_LEARNER):
        raise ValueError(f"{column} {text!r}: must be a whole number of at least {least}")
    return int(text)
