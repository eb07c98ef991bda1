"""What goes through the pipe of a process: frames however they are cut, and errors however they are made."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest

from echomq import JobNotFound, LockLost, RetryLater, RetryPolicy, errors
from echomq._from_process import from_process
from echomq._log import running_job
from echomq._worker import pipe
from echomq._worker.outcome import reason_of, trace_of
from tests.worker import process_tasks


def again(error: BaseException) -> BaseException:
    """Through the pipe."""
    [read] = pipe.Frames().read(pipe.frame(pipe.told(error)))
    return pipe.told_again(read[0])


def test_frames_come_whole_however_they_are_cut() -> None:
    sent = [["x" * size, size] for size in (0, 1, 7, 300, 70_000, 3)]
    stream = b"".join(pipe.frame(*one) for one in sent)
    for seed in range(20):
        chance = random.Random(seed)
        frames, at, got = pipe.Frames(), 0, list[Any]()
        while at < len(stream):
            size = chance.choice((1, 5, 6, 7, 1000, 65536))
            got += frames.read(stream[at : at + size])
            at += size
        assert got == sent


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="no frame"):
        list(pipe.Frames().read(b"\xff" * 64))


@pytest.mark.parametrize("name", sorted(process_tasks.ERRORS))
def test_an_error_keeps_its_class_its_reason_and_its_trace(name: str) -> None:
    before = running_job.set(process_tasks.NOBODY)
    error = process_tasks.ERRORS[name]()
    running_job.reset(before)
    made = again(error)
    assert type(made).__name__ == type(error).__name__
    if name != "attribute":  # nobody can look at that one
        assert (reason_of(made), trace_of(made)) == (reason_of(error), trace_of(error))
    if name not in ("local", "hidden", "attribute"):
        assert type(made) is type(error)
    assert from_process(made) is not None


def test_what_errors_carry_comes_along() -> None:
    plain: Any = again(process_tasks.Plain("word", number=7))
    assert (plain.args, plain.number) == (("word",), 7)
    file: Any = again(FileNotFoundError(2, "No such file", "seat.txt"))
    assert (file.errno, file.strerror, file.filename) == (2, "No such file", "seat.txt")
    left: Any = again(SystemExit(4))
    assert left.code == 4
    later: Any = again(RetryLater(30))
    assert later.after == 30
    group: Any = again(ExceptionGroup("two", [ValueError("a"), ExceptionGroup("inner", [KeyError("b")])]))
    assert [type(one) for one in group.exceptions] == [ValueError, ExceptionGroup]


def test_a_class_that_is_not_known_here_has_its_name_and_its_nearest_base() -> None:
    kind = type("Timeout", (ConnectionError, LookupError), {"__module__": "elsewhere.exceptions"})
    made = again(kind("slow"))
    assert (type(made).__module__, type(made).__name__) == ("elsewhere.exceptions", "Timeout")
    assert isinstance(made, ConnectionError)


def test_the_status_of_an_http_error_comes_along() -> None:
    error: Any = OSError("bad gateway")
    error.response = type("Response", (), {"status_code": 502, "__reduce__": None})()
    made: Any = again(error)
    assert made.response.status_code == 502


def test_what_is_called_as_the_status_of_a_response_stays_an_attribute() -> None:
    error: Any = ValueError("x")
    error.status_code = 429
    made: Any = again(error)
    assert made.status_code == 429
    assert not hasattr(made, "response")


def test_what_a_policy_wants_to_know_is_not_read_by_the_errors_class() -> None:
    read = list[str]()

    class Reads(Exception):
        def __getattr__(self, name: str) -> Any:
            read.append(name)
            raise AttributeError(name)

        @property
        def status(self) -> int:
            read.append("status")
            return 404

    module: Any = sys.modules[__name__]
    Reads.__qualname__ = "Reads"
    module.Reads = Reads
    try:
        made = again(Reads("x"))
    finally:
        del module.Reads
    assert type(made) is Reads
    read.clear()
    assert RetryPolicy.DEFAULT.kind(made) == "permanent"
    assert read == []


@pytest.mark.parametrize("error", [LockLost("lost"), JobNotFound("gone", found="active"), errors.ServerError("OOM x")])
def test_our_own_errors_come_back_to_the_child(error: errors.EchoMQError) -> None:
    made = again(error)
    assert type(made) is type(error)
    assert vars(made) == vars(error)
