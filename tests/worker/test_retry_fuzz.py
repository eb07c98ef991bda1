"""Whatever stands in a job's options, and whatever its error is, a failed run has an outcome that can be stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from echomq import Keep
from echomq._redis.wire import Argument
from echomq._store.codec import StoredJob
from echomq._store.finish import Failed, Outcome, Retry
from echomq._worker.held import Held
from echomq._worker.outcome import Ends
from echomq._worker.retry import Retries
from echomq._worker.run import Runner
from echomq.models import FAILURE_KINDS
from echomq.options import MAX_DELAY
from tests.worker.test_retry_policy import HOSTILE, http, with_status

RETRIES = Retries("q", {"mine": lambda made, error: 1.5})
ENDS = Ends.of(Keep.ALL, Keep.ALL, RETRIES.delay, RETRIES.kind, "bull:q-dead:", FAILURE_KINDS)

NUMBERS = st.one_of(
    st.integers(), st.floats(), st.sampled_from([0, -1, 1, 2, 3, 1e308, -0.0, 10**400, -(10**400), 2**63, float("nan")])
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=5), st.just("\ud800"), st.just("3"))
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
TYPES = st.one_of(st.sampled_from(["fixed", "exponential", "linear", "mine", "theirs", "", "__class__"]), ANYTHING)
BACKOFFS = st.one_of(
    ANYTHING, st.fixed_dictionaries({}, optional={"type": TYPES, "delay": ANYTHING, "jitter": ANYTHING})
)
OPTIONS = st.one_of(
    ANYTHING,
    st.fixed_dictionaries(
        {},
        optional={
            "attempts": ANYTHING, "backoff": BACKOFFS, "stackTraceLimit": ANYTHING, "lifo": ANYTHING, "delay": ANYTHING,
            "removeOnFail": ANYTHING, "removeOnComplete": ANYTHING, "expireIn": ANYTHING, "deadLetter": ANYTHING,
            "priority": ANYTHING, "de": ANYTHING, "parent": ANYTHING,
        },
    ),
)  # fmt: skip
COUNTERS = st.one_of(st.integers(-5, 5).map(str), NUMBERS.map(str), st.text(max_size=3))
ERRORS: dict[str, Callable[[], BaseException]] = {
    **HOSTILE,
    "plain": lambda: ValueError("no"),
    "time out": TimeoutError,
    "404": lambda: http(404),
    "503": lambda: with_status(503),
    "group": lambda: ExceptionGroup("", [ValueError(), ExceptionGroup("", [http(410)])]),
    "exit": lambda: SystemExit(3),
    "surrogate": lambda: KeyError("\ud800"),
}


class _Fails:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def __call__(self, held: Held) -> Any:
        raise self._error


async def _advance(job: StoredJob) -> float | None:
    return None


def run_once(job: StoredJob, error: BaseException) -> Outcome | None:
    """One run, without an event loop: nothing in it waits."""
    runner = Runner("q", _Fails(error), ENDS, _advance, lambda: False)
    running = runner.run(Held(job, "lane:1", 0.0))
    try:
        running.send(None)
    except StopIteration as ended:
        outcome: Outcome | None = ended.value
        return outcome
    raise AssertionError("it waits")


@settings(max_examples=600, deadline=None)
@given(opts=OPTIONS, atm=COUNTERS, name=st.sampled_from(sorted(ERRORS)))
@example(opts={"attempts": 5, "backoff": {"type": "linear", "delay": 1e308}}, atm="1", name="plain")
@example(opts={"attempts": 10**400, "backoff": {"type": "linear", "delay": 1}}, atm="9" * 300, name="plain")
@example(opts={"attempts": 2, "backoff": {"type": "exponential", "delay": -5, "jitter": "x"}}, atm="", name="plain")
def test_every_failed_run_has_an_outcome(opts: Any, atm: str, name: str) -> None:
    text = json.dumps(opts)
    fields = {
        b"name": b"work",
        b"data": b"{}",
        b"opts": text.encode(),
        b"ats": b"1",
        b"atm": atm.encode("utf-8", "replace"),
    }
    outcome = run_once(StoredJob("1", fields), ERRORS[name]())
    assert isinstance(outcome, Failed | Retry)
    assert outcome.failure_kind in FAILURE_KINDS
    if isinstance(outcome, Retry):
        assert 0 <= outcome.delay <= MAX_DELAY
    else:
        assert outcome.letter is not None
        assert json.loads(outcome.letter.opts + b"1}}")["deadLetter"]["failedOn"] == 1
    sent: tuple[Argument, ...] = outcome.wire()
    for part in sent:
        assert isinstance(part, (bytes, str))
        if isinstance(part, str):
            part.encode()
    more = sent[-1]
    assert isinstance(more, bytes)
    assert msgspec.msgpack.decode(more)["fields"][-1] == outcome.failure_kind


@pytest.mark.parametrize("opts", [b"", b"{", b"[]", b"null", b"1", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"a":1}}'])
def test_options_that_nobody_can_read(opts: bytes) -> None:
    outcome = run_once(StoredJob("1", {b"name": b"work", b"opts": opts}), ValueError())
    assert isinstance(outcome, Failed)
    assert outcome.failure_kind == "unrecoverable"
    assert "opts cannot be read" in outcome.reason
    outcome.wire()


@pytest.mark.parametrize(
    ("processed", "options", "expired"),
    [
        (2_000, {"expireIn": 1_000}, False),
        (2_001, {"expireIn": 1_000}, True),
        (7_000, {"expireIn": 1_000, "delay": 5_000}, False),
        (7_001, {"expireIn": 1_000, "delay": 5_000}, True),
        (9_000, {"expireIn": "1000"}, False),
        (9_000, {"expireIn": None}, False),
        (9_000, {"expireIn": 1_000, "delay": "x"}, True),
        (1_001, {"expireIn": 0}, True),
        (9_000, {"expireIn": 1_000, "expireAt": 9_000}, False),
        (9_001, {"expireIn": 1_000, "expireAt": 9_000}, True),
        (2_000, {"expireIn": 1_000, "expireAt": 500}, False),
        (2_001, {"expireIn": 1_000, "expireAt": "x"}, True),
    ],
)
def test_a_first_start_that_comes_too_late(processed: int, options: dict[str, Any], expired: bool) -> None:
    def job(**counters: int | str) -> StoredJob:
        every = {
            "name": "w",
            "opts": json.dumps({"attempts": 3, **options}),
            "timestamp": 1_000,
            "processedOn": processed,
        }
        return StoredJob("1", {key.encode(): str(value).encode() for key, value in {**every, **counters}.items()})

    outcome = run_once(job(ats=1), ValueError())
    assert isinstance(outcome, Failed if expired else Retry)
    assert (outcome.failure_kind == "expired") is expired
    if expired:  # unless it was put off
        assert isinstance(run_once(job(ats=1, due=processed), ValueError()), Retry)
        assert isinstance(run_once(job(ats=1, due="x"), ValueError()), Failed)
    for counters in ({"ats": 2}, {"ats": 2, "atm": 1}, {"ats": 1, "atm": 1}, {"ats": 1, "stacktrace": "[]"}):
        assert isinstance(run_once(job(**counters), ValueError()), Retry)
