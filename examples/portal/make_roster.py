"""Makes the roster: realistic, with duplicates, courses that run full, and bad rows. The same seed makes the same file.

python -m portal.make_roster > portal/roster.csv
"""

from __future__ import annotations

import csv
import random
import sys
from collections.abc import Iterator
from typing import TextIO

ROWS = 10_000
SEED = 3

COLUMNS = ("learner", "name", "course", "seats")
COURSES = {
    "redis-101": 620,
    "redis-201": 380,
    "reliable-queues": 700,
    "streams": 420,
    "flow-control": 300,
    "data-modelling": 450,
    "operations": 260,
    "lua-scripting": 240,
    "python-basics": 900,
    "python-async": 520,
    "python-typing": 300,
    "sql-basics": 640,
    "sql-tuning": 220,
    "statistics": 480,
    "linear-algebra": 330,
    "machine-learning": 560,
    "computer-vision": 210,
    "operating-systems": 340,
    "networks": 360,
    "distributed-systems": 410,
    "compilers": 120,
    "cryptography": 180,
    "web-design": 540,
    "seminar-rare-books": 12,
}
_FIRST = (
    "Ada Amara Ana Anders Aoife Ayşe Björn Carlos Chiara Chloé Dmitri Elena Emeka Fatima Femi Grace Hana Hiroshi Ingrid "
    "Isabel Ivan Jakub Jamal João Kaja Kwame Lars Leila Li Linh Luca Maja Mateo Mei Mohammed Nadia Ngozi Noah Olga Omar "
    "Priya Rafael Ravi Rosa Sana Sean Siobhán Sofia Tariq Thabo Tomás Uma Wei Yara Yuki Yusuf Zoë Zsófia"
).split()
_LAST = (
    "Abebe Adeyemi Ahmed Andersen Bauer Bianchi Castro Chen Costa Dubois Fernández García Haddad Hansen Horvát Ito Ivanova "
    "Jansen Johansson Kaya Khan Kim Kowalski Kumar Lindgren López Mbeki Mendes Moreau Müller Nakamura Nguyen Novák Nowak "
    "O'Brien Okafor Oliveira Osei Park Patel Petrov Popescu Rossi Sato Schmidt Silva Singh Smith Suzuki Tanaka Traoré Wang "
    "Weber Yılmaz Zhang"
).split()


def rows(count: int, seed: int = SEED) -> Iterator[list[str]]:
    """The first ``count`` rows. A longer roster of the same seed begins with the rows of a shorter one."""
    chance = random.Random(seed)
    courses = list(COURSES)
    # Some courses are asked for more than others, and not in proportion to their seats: those run full.
    weights = [COURSES[course] * chance.uniform(0.5, 1.9) for course in courses]
    names: dict[int, str] = {}
    made: list[list[str]] = []
    for _ in range(count):
        kind = chance.random()
        if kind < 0.015:
            row = _bad(chance, courses)
        elif kind < 0.11 and made:
            # Sent twice: mostly a double click, now and then a form handed in again weeks later.
            row = made[-1] if chance.random() < 0.6 else chance.choice(made)
        else:
            learner = chance.randint(100_001, 106_000)
            name = names.setdefault(learner, f"{chance.choice(_FIRST)} {chance.choice(_LAST)}")
            (course,) = chance.choices(courses, weights)
            row = [str(learner), name, course, str(COURSES[course])]
            made.append(row)
        yield row


def write(file: TextIO, count: int = ROWS, seed: int = SEED) -> None:
    """Writes a roster of ``count`` rows with its header."""
    table = csv.writer(file, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows(rows(count, seed))


def _bad(chance: random.Random, courses: list[str]) -> list[str]:
    learner = str(chance.randint(100_001, 106_000))
    name = f"{chance.choice(_FIRST)} {chance.choice(_LAST)}"
    course = chance.choice(courses)
    seats = str(COURSES[course])
    return chance.choice(
        [
            ["", name, course, seats],
            ["n/a", name, course, seats],
            [f"{learner}.5", name, course, seats],
            [f"-{learner}", name, course, seats],
            [learner, name, "", seats],
            [learner, name, course, "many"],
            [learner, name, course, str(COURSES[course] + 1)],
            [learner, *name.split(" ", 1), course, seats],
            [learner, name],
        ]
    )


if __name__ == "__main__":
    write(sys.stdout, int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)
