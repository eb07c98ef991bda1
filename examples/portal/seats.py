"""Seats in courses, in SQLite. An enrolment may be asked for any number of times and is carried out once.

At-least-once delivery means that a job can come again: its worker died after the seat was taken and before the queue heard
of it. So the effect guards itself. What makes that safe is that the guard, the seat and the fact share one transaction:
they are all there, or none of them is.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

Answer = Literal["enrolled", "already_enrolled", "course_full"]

_SCHEMA = """
CREATE TABLE courses (
    course TEXT PRIMARY KEY,
    seats INTEGER NOT NULL CHECK (seats >= 0),
    taken INTEGER NOT NULL DEFAULT 0 CHECK (taken BETWEEN 0 AND seats)
);
CREATE TABLE roster (
    course TEXT NOT NULL REFERENCES courses,
    learner INTEGER NOT NULL,
    PRIMARY KEY (course, learner)
);
-- Facts, appended and never changed. Nothing here forbids a fact to stand twice: that it does not is for the audit to show.
CREATE TABLE facts (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    learner INTEGER NOT NULL,
    course TEXT NOT NULL,
    at TEXT NOT NULL
);
CREATE TABLE turned_away (
    course TEXT NOT NULL REFERENCES courses,
    learner INTEGER NOT NULL,
    PRIMARY KEY (course, learner)
);
"""

_PATIENCE = 30.0
"""Seconds to wait for another process's transaction: SQLite has one writer at a time."""


@dataclass(frozen=True)
class Audit:
    """What the database says in the end.

    Attributes:
        effects: facts ``LearnerEnrolled``.
        duplicate_effects: facts beyond the first for the same learner and course.
        over_limit: roster rows beyond a course's seats.
        torn: a seat, a roster row or a fact that stands there without the others.
        lost: asked for, and neither seated nor turned away from a full course.
        already_enrolled: asked for again, for a learner who has the seat: a good row of the roster, and no effect.
        course_full: asked for, and turned away from a full course.
    """

    effects: int
    duplicate_effects: int
    over_limit: int
    torn: int
    lost: int
    already_enrolled: int
    course_full: int

    @property
    def is_clean(self) -> bool:
        """Whether each enrolment had its effect, and had it once."""
        return not (self.duplicate_effects or self.over_limit or self.torn or self.lost)


class Seats:
    """The seats, in the database file at ``path``. Threads of a process may share one; each process opens its own."""

    def __init__(self, path: Path) -> None:
        self._mutex = threading.Lock()
        self._db = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
        # With NORMAL a commit survives the death of every process, but not a loss of power, which this example does not
        # act out. Where that matters, leave SQLite at its default, FULL.
        self._db.execute("PRAGMA synchronous = NORMAL")

    @classmethod
    def create(cls, path: Path, courses: Mapping[str, int]) -> Seats:
        """Makes the database: each course with its number of seats, and nobody in them."""
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(_SCHEMA)
            db.executemany("INSERT INTO courses (course, seats) VALUES (?, ?)", courses.items())
        return cls(path)

    def enroll(self, learner: int, course: str) -> Answer:
        """Takes a seat for a learner, unless the learner has one in this course or the course is full.

        Raises:
            LookupError: there is no such course.
        """
        with self._transaction() as db:
            if db.execute("SELECT 1 FROM roster WHERE course = ? AND learner = ?", (course, learner)).fetchone():
                return "already_enrolled"
            if not db.execute(
                "UPDATE courses SET taken = taken + 1 WHERE course = ? AND taken < seats", (course,)
            ).rowcount:
                if not db.execute("SELECT 1 FROM courses WHERE course = ?", (course,)).fetchone():
                    raise LookupError(f"there is no course {course!r}")
                db.execute("INSERT OR IGNORE INTO turned_away (course, learner) VALUES (?, ?)", (course, learner))
                return "course_full"
            db.execute("INSERT INTO roster (course, learner) VALUES (?, ?)", (course, learner))
            db.execute(
                "INSERT INTO facts (name, learner, course, at) VALUES ('LearnerEnrolled', ?, ?, ?)",
                (learner, course, datetime.now(UTC).isoformat()),
            )
            return "enrolled"

    def audit(self, asked: Iterable[tuple[int, str]]) -> Audit:
        """Compares what was asked for, learner and course, with what is there. It trusts no counter and no queue."""
        with self._transaction() as db:
            # Nobody gives a seat back, so who was turned away from a course that has seats left was turned away wrongly.
            seated = set(db.execute("SELECT learner, course FROM roster"))
            away = set(db.execute("SELECT learner, course FROM turned_away NATURAL JOIN courses WHERE taken = seats"))
            rows = list(asked)
            return Audit(
                effects=_number(db, "SELECT count(*) FROM facts"),
                duplicate_effects=_number(
                    db, "SELECT sum(n - 1) FROM (SELECT count(*) AS n FROM facts GROUP BY learner, course)"
                ),
                over_limit=_number(
                    db,
                    "SELECT sum(max(0, n - seats)) FROM courses NATURAL JOIN "
                    "(SELECT course, count(*) AS n FROM roster GROUP BY course)",
                ),
                torn=_number(
                    db,
                    "SELECT sum(abs(taken - (SELECT count(*) FROM roster WHERE roster.course = courses.course)))"
                    " FROM courses",
                )
                + _number(
                    db,
                    "SELECT count(*) FROM roster LEFT JOIN facts USING (course, learner) WHERE facts.id IS NULL",
                )
                + _number(
                    db,
                    "SELECT count(*) FROM facts LEFT JOIN roster USING (course, learner) WHERE roster.course IS NULL",
                ),
                lost=sum(row not in seated and row not in away for row in rows),
                already_enrolled=sum(row in seated for row in rows) - len(seated.intersection(rows)),
                course_full=sum(row in away and row not in seated for row in rows),
            )

    def is_being_written(self) -> bool:
        """Whether another process is inside of a transaction just now."""
        with self._mutex:
            self._db.execute("PRAGMA busy_timeout = 0")
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.execute("ROLLBACK")
            except sqlite3.OperationalError:
                return True
            finally:
                self._db.execute(f"PRAGMA busy_timeout = {_PATIENCE * 1000:.0f}")
            return False

    def close(self) -> None:
        """Closes the database."""
        with self._mutex:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._mutex:
            self._db.execute("BEGIN IMMEDIATE")  # the guard must read what no other writer can change any more
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")


def _number(db: sqlite3.Connection, query: str) -> int:
    (value,) = db.execute(query).fetchone()
    return value or 0
