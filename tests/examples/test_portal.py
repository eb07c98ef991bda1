"""The portal: a seat is taken once, whoever asks and however often; and the audit sees it when that is not so."""

from __future__ import annotations

import io
import multiprocessing
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from echomq.cli._demo import example
from portal import journal, make_roster, roster
from portal.roster import RosterError
from portal.seats import Audit, Seats

LEARNERS = range(1, 41)
COURSES = {"redis": 10, "lua": 25, "streams": 100}
ASKED = [(learner, course) for learner in LEARNERS for course in COURSES]
CLEAN = Audit(
    effects=10 + 25 + 40, duplicate_effects=0, over_limit=0, torn=0, lost=0, already_enrolled=0, course_full=30 + 15
)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "portal.db"


def enroll_all(database: Path) -> None:
    seats = Seats(database)
    for learner, course in ASKED:
        seats.enroll(learner, course)
    seats.close()


def test_the_first_delivery_takes_the_seat_and_the_next_one_meets_the_guard(database: Path) -> None:
    seats = Seats.create(database, {"redis": 1})
    assert seats.enroll(7, "redis") == "enrolled"
    before = contents(database)
    assert seats.enroll(7, "redis") == "already_enrolled"
    assert contents(database) == before
    assert seats.enroll(8, "redis") == "course_full"
    assert seats.enroll(8, "redis") == "course_full"
    with pytest.raises(LookupError, match="'latin'"):
        seats.enroll(7, "latin")
    assert seats.enroll(7, "redis") == "already_enrolled"  # the refusal left no transaction open
    assert seats.audit([(7, "redis"), (8, "redis"), (7, "redis")]) == Audit(
        effects=1, duplicate_effects=0, over_limit=0, torn=0, lost=0, already_enrolled=1, course_full=1
    )
    seats.close()


def test_threads_that_share_the_seats(database: Path) -> None:
    seats = Seats.create(database, COURSES)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda pair: seats.enroll(*pair), ASKED * 3))
    assert answers.count("enrolled") == CLEAN.effects
    assert seats.audit(ASKED) == CLEAN
    assert seats.audit(ASKED).is_clean
    thrice = seats.audit(ASKED * 3)
    assert (thrice.effects, thrice.already_enrolled, thrice.course_full) == (75, 150, 135)
    seats.close()


def test_processes_that_ask_for_the_same_seats(database: Path) -> None:
    seats = Seats.create(database, COURSES)
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=enroll_all, args=(database,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
        process.close()
    assert seats.audit(ASKED) == CLEAN
    seats.close()


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ("DELETE FROM turned_away WHERE learner = (SELECT max(learner) FROM turned_away)", {"lost": 2}),
        ("INSERT INTO facts SELECT 999, name, learner, course, at FROM facts LIMIT 1", {"duplicate_effects": 1}),
        ("DELETE FROM facts WHERE id = 1", {"torn": 1}),
        # A row that nobody has a seat for: over the limit, and without its seat and its fact.
        ("INSERT INTO roster VALUES ('redis', 40)", {"over_limit": 1, "torn": 2}),
        # A learner's row has gone: the seat and the fact stand there alone, and the learner is without a seat.
        ("DELETE FROM roster WHERE course = 'streams' AND learner = 1", {"torn": 2, "lost": 1}),
        # Turned away from a course that has seats.
        ("UPDATE courses SET seats = 11 WHERE course = 'redis'", {"lost": 30}),
    ],
)
def test_the_audit_sees_what_is_wrong(database: Path, damage: str, found: dict[str, int]) -> None:
    seats = Seats.create(database, COURSES)
    enroll_all(database)
    with sqlite3.connect(database) as db:
        db.execute(damage)
    db.close()
    audit = seats.audit(ASKED)
    seats.close()
    rightful = {"effects", "already_enrolled", "course_full"}
    wrong = {name: value for name, value in vars(audit).items() if value and name not in rightful}
    assert wrong == found
    assert not audit.is_clean


def test_whether_somebody_writes_is_seen(database: Path) -> None:
    seats = Seats.create(database, {"redis": 1})
    assert not seats.is_being_written()
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert seats.is_being_written()
    other.execute("ROLLBACK")
    other.close()
    assert not seats.is_being_written()
    assert seats.enroll(7, "redis") == "enrolled"
    seats.close()


def contents(database: Path) -> list[str]:
    db = sqlite3.connect(database)
    lines = list(db.iterdump())
    db.close()
    return lines


def read(tmp_path: Path, text: str | bytes, most: int | None = None) -> roster.Roster:
    path = tmp_path / "roster.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return roster.read(path, most)


def test_good_rows_and_bad_ones(tmp_path: Path) -> None:
    got = read(
        tmp_path,
        "\ufeffLearner, Name ,course,SEATS\r\n"
        '7,"Lovelace, Ada",redis,2\r\n'
        "7,Ada,redis,2\r\n"  # a duplicate is a good row
        "\r\n"  # not a row
        "8,Alan,redis,3\r\n"
        ",Nobody,redis,2\r\n"
        "0,Zero,redis,2\r\n"
        "9223372036854775808,Big,redis,2\r\n"
        "1_0,Py,redis,2\r\n"
        "9,Edsger,,2\r\n"
        "9,Edsger,lua,many\r\n"
        "9,Edsger,lua\r\n"
        "9,Edsger,W.,lua,4\r\n"
        " 9 ,Edsger, lua ,4,\r\n"
        "9,Edsger,lua,4\r\n",
    )
    assert got.enrolments == [(7, "redis"), (7, "redis"), (9, "lua"), (9, "lua")]
    assert got.courses == {"redis": 2, "lua": 4}
    assert got.rows == 13
    assert [line for line, _ in got.bad] == [5, 6, 7, 8, 9, 10, 11, 12, 13]
    assert got.bad[0] == (5, "seats 3: an earlier row says that 'redis' has 2")


def test_seats_may_be_left_out_and_reading_stops_where_asked(tmp_path: Path) -> None:
    got = read(tmp_path, "learner,course\n1,redis\nx,redis\n2,lua\n3,lua\n", most=2)
    assert got.enrolments == [(1, "redis"), (2, "lua")]
    assert got.courses == {"redis": roster.SEATS, "lua": roster.SEATS}
    assert got.rows == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; its first line must name the columns"),
        ("learner,course\n", "has a header and no rows"),
        ("learner,seats\n7,1\n", "has no column 'course'"),
        ("learner;course\n7;redis\n", "has no column 'learner' and no column 'course'"),
        ("learner,course\nseven,redis\n", "the first, in line 2: learner 'seven': must be a whole number"),
        (b"\xff\xfel\0e\0", "is not text in UTF-8"),
        ('learner,course\n7,"redis\n', "is not a CSV file"),
    ],
)
def test_a_roster_that_cannot_be_used(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(RosterError, match=message):
        read(tmp_path, text)


def test_a_roster_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.csv"):
        with pytest.raises(RosterError, match="cannot be read"):
            roster.read(path)


def test_the_roster_that_ships_is_the_one_that_its_maker_makes() -> None:
    path = example.folder() / "portal" / "roster.csv"
    made = io.StringIO()
    make_roster.write(made)
    assert made.getvalue() == path.read_text(encoding="utf-8")
    got = roster.read(path)
    assert got.rows == 10_000
    assert len(got.bad) > 100
    assert len(got.enrolments) - len(set(got.enrolments)) > 500
    wanted = {course: len({who for who, what in got.enrolments if what == course}) for course in got.courses}
    assert sum(wanted[course] > seats for course, seats in got.courses.items()) > 5
    assert sum(wanted[course] < seats for course, seats in got.courses.items()) > 5


def test_a_journal_is_read_while_it_is_written(tmp_path: Path) -> None:
    reader = journal.Reader(tmp_path / "journal")
    assert reader.refresh() == []
    writer = journal.Journal(tmp_path / "journal")
    writer.started("1")
    writer.started("2")
    writer.answered("1", "enrolled")
    assert reader.refresh() == ["1", "2"]
    assert reader.held == {"1", "2"}
    writer.started("1")  # again, while the first run, which nobody can stop, goes on
    writer.done("1")
    assert reader.refresh() == ["1"]
    assert reader.held == {"1", "2"}
    writer.done("1")
    assert reader.refresh() == []
    assert (reader.held, reader.started, reader.answers) == ({"2"}, 3, {"1": "enrolled"})
