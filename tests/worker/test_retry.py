"""When a job that failed runs again (protocol 3.6)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from echomq import InvalidOption, Worker
from echomq._store.codec import RunOptions
from echomq._worker.retry import Retries
from echomq.options import MAX_DELAY
from echomq.retry_policy import RetryPolicy
from tests.worker.pieces import stored

ERROR = ValueError("it failed")


def options(**chosen: Any) -> RunOptions:
    return RunOptions(raw={}, **{"attempts": 5, **chosen})


@pytest.mark.parametrize(
    ("attempts", "made", "again"),
    [(0, 1, False), (1, 1, False), (2, 1, True), (2, 2, False), (5, 4, True), (5, 5, False), (5, 9, False)],
)
def test_attempts_are_runs_in_all(attempts: int, made: int, again: bool) -> None:
    assert Retries("q", {}).delay(stored(), options(attempts=attempts), made, ERROR) == (0.0 if again else None)


def test_fixed_is_the_same_each_time() -> None:
    chosen = options(backoff_type="fixed", backoff_delay=3.0)
    assert [Retries("q", {}).delay(stored(), chosen, made, ERROR) for made in (1, 2, 3)] == [3.0, 3.0, 3.0]


def test_exponential_doubles_and_has_an_end() -> None:
    chosen = options(attempts=10**6, backoff_type="exponential", backoff_delay=0.5)
    assert [Retries("q", {}).delay(stored(), chosen, made, ERROR) for made in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 4.0]
    assert Retries("q", {}).delay(stored(), chosen, 5000, ERROR) == MAX_DELAY


def test_linear_grows_by_the_same_and_has_an_end() -> None:
    chosen = options(attempts=10**12, backoff_type="linear", backoff_delay=0.5)
    assert [Retries("q", {}).delay(stored(), chosen, made, ERROR) for made in (1, 2, 3, 4)] == [0.5, 1.0, 1.5, 2.0]
    assert Retries("q", {}).delay(stored(), chosen, 10**11, ERROR) == MAX_DELAY
    assert Retries("q", {}).delay(stored(), chosen, -3, ERROR) == 0.5


class Wrong(RetryPolicy, frozen=True):
    """A user's own, which does not keep to the rules."""

    answer: Any = None

    def kind(self, error: BaseException) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [None, "perhaps", [], KeyError("x"), SystemExit()])
def test_a_policy_that_is_wrong_costs_no_attempt(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "echomq"):
        assert Retries("q", {}, Wrong(answer=answer)).kind(stored(), ERROR, None) == "unknown"
    assert "the retry policy Wrong of queue q answered" in caplog.text


def test_the_policy_of_the_task_goes_before_that_of_the_worker() -> None:
    retries = Retries("q", {}, RetryPolicy(permanent=(ValueError,)))
    assert retries.kind(stored(), ERROR, None) == "permanent"
    assert retries.kind(stored(), ERROR, RetryPolicy(transient=(ValueError,))) == "transient"


def test_jitter_takes_away_at_most_its_share() -> None:
    chosen = options(backoff_type="fixed", backoff_delay=10.0, backoff_jitter=0.3)
    delays = [Retries("q", {}).delay(stored(), chosen, 1, ERROR) or 0.0 for _ in range(200)]
    assert 7.0 <= min(delays) < max(delays) <= 10.0


@pytest.mark.parametrize(
    ("strategy", "delay"),
    [
        (lambda made, error: made * 2, 6.0),
        (lambda made, error: timedelta(minutes=1), 60.0),
        (lambda made, error: None if isinstance(error, ValueError) else 1, None),
        (lambda made, error: 0, 0.0),
    ],
)
def test_a_strategy_of_the_workers_own(strategy: Callable[..., Any], delay: float | None) -> None:
    assert Retries("q", {"mine": strategy}).delay(stored(), options(backoff_type="mine"), 3, ERROR) == delay


@pytest.mark.parametrize("answer", [-1, float("nan"), "soon", True, ValueError("broken"), SystemExit(1)])
def test_a_strategy_that_is_wrong_costs_no_attempt_and_no_storm(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    def strategy(made: int, error: BaseException) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    retries = Retries("q", {"mine": strategy})
    with caplog.at_level(logging.ERROR, "echomq"):
        assert retries.delay(stored(), options(backoff_type="mine"), 1, ERROR) == 1.0
        assert retries.delay(stored(), options(backoff_type="mine", backoff_delay=7.0), 1, ERROR) == 7.0
    assert "back-off 'mine' failed; job 1 (work) of queue q waits 1 s" in caplog.text


async def by_hour(made: int, error: BaseException) -> float:
    return 60.0


@pytest.mark.parametrize(
    ("strategies", "says"),
    [
        ([1], "backoff_strategies=[1]: must be a mapping of names to functions"),
        ({"a": 1}, "backoff_strategies['a']=1: must be a plain function"),
        ({"by-hour": by_hour}, "must be a plain function of the attempts made so far and the error, not async"),
        (
            {"fixed": lambda made, error: 1},
            "backoff_strategies name 'fixed': must be a text that is not empty and none of",
        ),
        ({"": lambda made, error: 1}, "backoff_strategies name '': must be a text"),
        ({7: lambda made, error: 1}, "backoff_strategies name 7: must be a text"),
    ],
)
def test_strategies_that_are_none_are_refused_where_the_worker_is_made(strategies: Any, says: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Worker("q", print, connection="redis://localhost", backoff_strategies=strategies)
    assert says in str(caught.value)


@pytest.mark.parametrize(("delay", "waits"), [(4.0, 4.0), (0.0, 1.0)])
def test_a_strategy_that_this_worker_does_not_know_waits_its_fixed_delay_or_a_second(
    caplog: pytest.LogCaptureFixture, delay: float, waits: float
) -> None:
    retries = Retries("q", {"mine": lambda made, error: 0})
    with caplog.at_level(logging.ERROR, "echomq"):
        assert retries.delay(stored(), options(backoff_type="theirs", backoff_delay=delay), 1, ERROR) == waits
    [line] = [record.getMessage() for record in caplog.records]
    assert line == (
        "job 1 (work) of queue q asks for back-off 'theirs', which this worker does not know (backoff_strategies has: 'mine'); "
        f"it waits {waits:g} s"
    )
