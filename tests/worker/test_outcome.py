"""What became of a run, as a value."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from echomq import Backoff, DeadLetter, InvalidOption, Keep, RateLimited, RetryLater, RetryPolicy, Unrecoverable
from echomq._store.codec import RunOptions, dead_letter_in, dead_letter_opts, to_moment
from echomq._store.finish import Completed, Delayed, Failed, GivenBack, Retry
from echomq._store.finish import RateLimited as RateLimitedOutcome
from echomq._worker.outcome import MAX_TEXT, STALLED_TOO_OFTEN, Ends, message_of, printable, reason_of
from echomq._worker.retry import Retries
from tests.worker.pieces import held, stored

RETRIES = Retries("q", {})
ENDS = Ends.of(Keep(count=5), Keep.NONE, RETRIES.delay, RETRIES.kind, "emq:{q}-dead:")
ONCE = RunOptions(raw={}, attempts=1)
TWICE = RunOptions(raw={}, attempts=2)


@pytest.mark.parametrize(
    ("value", "text"), [(None, b"null"), ({"a": 1}, b'{"a":1}'), ((1, 2), b"[1,2]"), ("ü", '"ü"'.encode())]
)
def test_a_value_completes(value: object, text: bytes) -> None:
    outcome = ENDS.returned(held(), ONCE, value)
    assert isinstance(outcome, Completed)
    assert (outcome.job_id, outcome.token, outcome.value, outcome.error) == ("1", "lane:1", text, None)


def test_a_value_without_json_form_completes_with_null_and_the_reason() -> None:
    outcome = ENDS.returned(held(), ONCE, {"price": float("inf")})
    assert isinstance(outcome, Completed)
    assert outcome.value == b"null"
    assert "result.price" in (outcome.error or "")


def test_a_value_that_is_more_than_a_server_takes_is_left_out() -> None:
    whole = ENDS.returned(held(), ONCE, "x" * 100)
    outcome = ENDS.without_result(held(), whole, "too long")
    assert isinstance(outcome, Completed)
    assert (outcome.value, outcome.error) == (b"null", "result: too long")
    assert ENDS.without_result(held(), outcome, "again") is None
    assert ENDS.without_result(held(), ENDS.stopped(held()), "whatever") is None


def test_an_error_fails_or_retries() -> None:
    error = ValueError("broken")
    first = ENDS.raised(held(), TWICE, error)
    assert isinstance(first, Retry)
    assert (first.reason, first.delay) == ("ValueError: broken", 0.0)
    last = ENDS.raised(held(atm=1), TWICE, error)
    assert isinstance(last, Failed)
    assert (last.reason, last.attempts) == ("ValueError: broken", 2)


def test_what_a_handler_raises_to_say_so() -> None:
    later = ENDS.raised(held(), ONCE, RetryLater(5))
    assert isinstance(later, Delayed)
    assert later.delay == 5.0
    limited = ENDS.raised(held(), ONCE, RateLimited(2))
    assert isinstance(limited, RateLimitedOutcome)
    assert limited.limit == 2.0
    final = ENDS.raised(held(), TWICE, Unrecoverable("no use"))
    assert isinstance(final, Failed)
    assert final.reason == "no use"
    wrong = RetryLater(1)
    wrong.after = -1
    assert isinstance(ENDS.raised(held(), ONCE, wrong), Failed)


@pytest.mark.parametrize("after", ["x", -1, None, True, float("nan"), float("inf"), timedelta(days=-1), 1e10])
@pytest.mark.parametrize("kind", [RetryLater, RateLimited])
def test_a_wait_that_is_none_is_refused_where_it_is_raised(kind: Any, after: Any) -> None:
    with pytest.raises(InvalidOption, match=rf"{kind.__name__}\(after=.*\): must be from 0 to 315360000 seconds"):
        kind(after)
    assert kind(timedelta(seconds=2)).after == timedelta(seconds=2)


def test_the_kind_of_an_error_decides_whether_there_is_a_next_attempt() -> None:
    kinds = {
        TimeoutError(): ("transient", Retry),
        ValueError(): ("unknown", Retry),
        msgspec.ValidationError(): ("permanent", Failed),
        Unrecoverable("no"): ("unrecoverable", Failed),
    }
    for error, (kind, becomes) in kinds.items():
        outcome = ENDS.raised(held(), TWICE, error)
        assert isinstance(outcome, Failed | Retry)
        assert (outcome.failure_kind, type(outcome)) == (kind, becomes)
        last = ENDS.raised(held(atm=1), TWICE, error)
        assert isinstance(last, Failed)
        assert last.failure_kind == kind
    of_its_task = held()
    of_its_task.retry_policy = RetryPolicy.ALWAYS
    assert isinstance(ENDS.raised(of_its_task, TWICE, msgspec.ValidationError()), Retry)


def test_what_must_not_run_has_failed_for_a_reason() -> None:
    for reason, kind in ((STALLED_TOO_OFTEN, "crashed"), ("child bull:q:1 failed", "unrecoverable")):
        outcome = ENDS.deferred(held(), TWICE, reason)
        assert isinstance(outcome, Failed)
        assert (outcome.reason, outcome.failure_kind) == (reason, kind)


def test_dead_letters_are_left_by_the_kinds_that_were_asked_for() -> None:
    crashed = Ends.of(Keep.ALL, Keep.ALL, RETRIES.delay, RETRIES.kind, "emq:{q}-dead:", ("crashed",))
    outcome = crashed.deferred(held(), TWICE, STALLED_TOO_OFTEN)
    assert isinstance(outcome, Failed)
    assert outcome.letter is not None
    assert outcome.letter.queue == "emq:{q}-dead:"
    other = crashed.failed(held(), TWICE, "no", "unknown")
    assert isinstance(other, Failed)
    assert other.letter is None


LETTERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"opts": {"attempts": 3, "big": 12345678901234567890, "empty": []}},
     {"attempts": 3, "big": 12345678901234567890, "empty": []}),
    ({"opts": {"jobId": "x", "delay": 5, "parent": {"id": "1"}, "fpof": True, "de": {"id": "d"}, "lifo": True}}, {"lifo": True}),
    ({"opts": {"priority": 5}, "priority": 2}, {"priority": 2}),
    ({"opts": {"deadLetter": {"id": "older"}}}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("job", "options"), LETTERS)
def test_a_dead_letter_keeps_the_options_that_its_next_life_needs(job: dict[str, Any], options: dict[str, Any]) -> None:
    text = dead_letter_opts(stored(atm=2, **job), 'it "failed"') + b"7}}"
    letter = {"id": "1", "reason": 'it "failed"', "attemptsMade": 3, "failedOn": 7}
    assert json.loads(text) == {**options, "deadLetter": letter}
    assert dead_letter_in(json.loads(text)) == DeadLetter("1", 'it "failed"', 3, to_moment(7))


@pytest.mark.parametrize("opts", [b"{", b"[]", b'{"a":NaN}', b"\xff", b"[" * 5000])
def test_a_dead_letter_of_options_that_nobody_can_read(opts: bytes) -> None:
    job = stored()
    job.fields[b"opts"] = opts
    assert list(json.loads(dead_letter_opts(job, "no") + b"7}}")) == ["deadLetter"]


@pytest.mark.parametrize("found", [None, 1, [], "x", {"id": 7, "failedOn": "x", "attemptsMade": None}])
def test_what_somebody_has_written_in_place_of_a_dead_letter(found: object) -> None:
    letter = dead_letter_in({"deadLetter": found})
    assert letter == (DeadLetter("7", "", 0, None) if isinstance(found, dict) else None)


@pytest.mark.parametrize("called", [True, False])
def test_a_stopped_run_is_given_back(called: bool) -> None:
    stopped = held()
    stopped.called = called
    outcome = ENDS.stopped(stopped)
    assert isinstance(outcome, GivenBack)
    assert outcome.started is called


def test_traces_are_kept_up_to_their_limit() -> None:
    before = json.dumps([f"trace {number}" for number in range(10)])
    outcome = ENDS.raised(held(stacktrace=before), ONCE, ValueError("new"))
    assert isinstance(outcome, Failed)
    traces = json.loads(outcome.stacktrace)
    assert len(traces) == 10
    assert traces[0] == "trace 1"
    assert traces[-1].endswith("ValueError: new\n")
    none = ENDS.raised(held(), RunOptions(raw={}, stack_trace_limit=0), ValueError("new"))
    assert isinstance(none, Failed)
    assert none.stacktrace == b"[]"


def test_retention_is_the_jobs_own_or_the_workers() -> None:
    own = RunOptions(raw={}, keep_completed="own", keep_failed="own too")
    assert [ENDS.returned(held(), opts, 1).keep for opts in (own, ONCE)] == ["own", ENDS.rule_completed]
    assert [ENDS.failed(held(), opts, "", "unknown").keep for opts in (own, ONCE)] == ["own too", ENDS.rule_failed]  # type: ignore[attr-defined]


def test_texts_are_bounded_and_can_be_written() -> None:
    assert len(printable("x" * 10 * MAX_TEXT)) == MAX_TEXT
    printable("half \ud83d").encode()
    assert reason_of(ValueError()) == "ValueError"
    assert reason_of(RetryLater(1, "")) == "asked to run again after 1"

    class Mute(Exception):
        def __str__(self) -> str:
            raise SystemExit

    assert message_of(Mute()) == "its message cannot be read"


def test_backoff_of_the_job_decides_the_wait() -> None:
    waits = RunOptions(raw={}, attempts=3, backoff_type=Backoff.fixed(4).type, backoff_delay=4.0)
    outcome = ENDS.raised(held(), waits, ValueError())
    assert isinstance(outcome, Retry)
    assert outcome.delay == 4.0
