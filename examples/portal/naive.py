"""The same work over a plain list: push at one end, pop at the other. It is right until somebody dies.

BLPOP takes the item off the list and hands it to the consumer in one step, so from then on the consumer's memory is the only
place that has it. Nothing expires, nobody sweeps, and no count anywhere says that something is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import redis

from portal.leash import end_with_parent
from portal.seats import Seats
from portal.worker import look_up_learner, write_welcome_letter

_EMPTY_AFTER = 1
"""Seconds without an item after which the consumer takes the list for done."""


def push(url: str, key: str, enrolments: Sequence[tuple[int, str]]) -> None:
    """Pushes enrolments."""
    with redis.Redis.from_url(url) as client:
        client.rpush(key, *(json.dumps(enrolment) for enrolment in enrolments))


def consume(url: str, key: str, database: Path) -> None:
    """Pops and enrols until the list stays empty. Says on standard output what it took, and when it is done with it."""
    seats = Seats(database)
    with redis.Redis.from_url(url) as client:
        while popped := client.blpop([key], timeout=_EMPTY_AFTER):
            learner, course = json.loads(popped[1])
            _say("took", learner, course)
            look_up_learner()
            seats.enroll(learner, course)
            write_welcome_letter()
            _say("done", learner, course)
    _say("empty")


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Runs the consumer."""
    parser = argparse.ArgumentParser(description="Enrols learners from a list, and loses some.")
    parser.add_argument("--key", required=True, help="the list")
    parser.add_argument("--database", type=Path, required=True, help="made by Seats.create")
    parser.add_argument("--leash", action="store_true", help="end when standard input, a pipe from the parent, ends")
    arguments = parser.parse_args()
    if arguments.leash:
        end_with_parent()
    consume(os.environ["ECHOMQ_URL"], arguments.key, arguments.database)


if __name__ == "__main__":
    main()
