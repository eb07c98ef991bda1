"""Every rule for what callers may ask for, with the message that names the value, the rule and the remedy."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq._store.keys import QueueKeys
from echomq.errors import InvalidOption
from echomq.options import Backoff, JobSpec, Keep, Limiter, check_job_id, check_queue_name, check_whole, to_seconds


class Nowhere(tzinfo):
    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = utcoffset

    def tzname(self, _: datetime | None) -> None:
        return None


# -- durations ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"), [(0, 0.0), (1.5, 1.5), (timedelta(minutes=1), 60.0), (3.1536e8, 3.1536e8)]
)
def test_durations(value: Any, seconds: float) -> None:
    assert to_seconds(value, "delay") == seconds


@pytest.mark.parametrize("value", [-0.001, 10**400, timedelta(days=4000), 3.1536e8 + 1])
def test_durations_out_of_range(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"delay=.*: must be from 0 to 315360000 seconds"):
        to_seconds(value, "delay")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_durations_that_are_not_finite(value: Any) -> None:
    with pytest.raises(InvalidOption, match=rf"delay={value}: is not finite; must be from 0 to 315360000 seconds"):
        to_seconds(value, "delay")


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(InvalidOption) as caught:
        to_seconds("5" * 10_000, "delay")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="job_id=<int>: must not be a whole number"):
        check_job_id(10**5000)  # type: ignore[arg-type]  # more digits than Python writes
    assert str(caught.value) == f"delay='{'5' * 59}…: must be seconds (int or float) or a timedelta"


@pytest.mark.parametrize("value", ["5", True, None, [1], datetime(2026, 1, 1)])  # noqa: DTZ001
def test_what_is_no_duration(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"delay=.*: must be seconds \(int or float\) or a timedelta"):
        to_seconds(value, "delay")


@pytest.mark.parametrize("value", [1.0, "1", True, None, -1, 11])
def test_what_is_no_whole_number_in_range(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"slots=.*: must be a whole number from 0 to 10"):
        check_whole(value, "slots", least=0, most=10)


# -- names of queues (protocol 1.2) ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["q", "with spaces", "ünï", "队列", "🙂", "a.b/c-d_e", "0", "wait"])
def test_names_of_queues(name: str) -> None:
    assert check_queue_name(name, hash_tag=True) == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "queue name '': must be a text that is not empty"),
        (None, "queue name None: must be a text that is not empty"),
        (7, "queue name 7: must be a text"),
        ("a:b", "queue name 'a:b': must not contain ':', .*; use '-' or '.' instead"),
        ("a{b", "queue name 'a{b': must not contain braces, .*; leave them out, or pass hash_tag=False"),
        ("{a}", "queue name '{a}': must not contain braces"),
        ("a\ud800", "holds a lone surrogate, .*; remove it"),
    ],
)
def test_names_of_queues_that_are_refused(name: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        check_queue_name(name, hash_tag=True)


def test_braces_are_free_where_they_are_not_ours() -> None:
    assert QueueKeys.of("{a}", prefix="bull").base == "bull:{a}:"
    assert QueueKeys.of("{a}", hash_tag=False).base == "emq:{a}:"
    assert QueueKeys.of("a", prefix="bull", hash_tag=True).base == "bull:{a}:"


@pytest.mark.parametrize("prefix", ["", None, "a{b"])
def test_prefixes_that_are_refused(prefix: Any) -> None:
    with pytest.raises(InvalidOption, match=r"prefix=.*: must be a text that is not empty and has no braces"):
        QueueKeys.of("q", prefix=prefix)


# -- ids of jobs (protocol 1.3) ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "job_id", ["my-id", "1.5", "007", "+1", "1e3", "a:b:c", "ünï 🙂", " 12", "12\n", "waiting", "de-x"]
)
def test_ids_of_ones_own(job_id: str) -> None:
    assert check_job_id(job_id) == job_id


@pytest.mark.parametrize(
    ("job_id", "message"),
    [
        ("", "job_id='': must be a text that is not empty"),
        (12, "job_id=12: must not be a whole number, not as a text either, .*; put a word .*, such as 'order-12'"),
        (True, "job_id=True: must be a text"),
        ("12", "job_id='12': must not be a whole number, .*; put a word before it, such as 'order-12'"),
        ("x" * 1001, "job_id='x{59}…: has 1001 characters, and at most 1000 are allowed; use a shorter one"),
        ("-3", "job_id='-3': must not be a whole number"),
        ("0", "job_id='0': must not be a whole number"),
        ("a:b", "job_id='a:b': must not contain ':'; use '-' instead"),
        ("0:1", "job_id='0:1': must not contain ':'"),
        ("0:1:2", "job_id='0:1:2': must not contain ':'"),
        ("a:b:c:d", "must not contain ':'"),
        ("wait", "job_id='wait': is the name of one of the queue's own keys; choose another"),
        ("stalled-check", "is the name of one of the queue's own keys"),
        ("repeat:x:1", "is the name of one of the queue's own keys"),
        ("metrics:completed:data", "is the name of one of the queue's own keys"),
        ("a\udfff", "holds a lone surrogate"),
    ],
)
def test_ids_that_are_refused(job_id: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        check_job_id(job_id)


@given(st.integers())
def test_no_id_meets_one_that_the_queue_gives_out(number: int) -> None:
    with pytest.raises(InvalidOption):
        check_job_id(str(number))


# -- back-off and retention --------------------------------------------------------------------------------------------------


def test_ways_to_wait_between_attempts() -> None:
    assert Backoff.fixed(timedelta(seconds=2)) == Backoff("fixed", 2.0)
    assert Backoff.exponential(1, jitter=0.5) == Backoff("exponential", 1.0, 0.5)
    assert Backoff.custom("mine", 3) == Backoff("mine", 3.0)
    assert Backoff("fixed", timedelta(minutes=1)).delay == 60.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("",), "backoff type '': must be 'fixed', 'exponential', 'linear' or a strategy's name"),
        ((None,), "backoff type None"),
        (("fixed", -1), "backoff delay=-1: must be from 0"),
        (("fixed", "1"), "backoff delay='1': must be seconds"),
        (("fixed", 1, 1.5), "backoff jitter 1.5: must be a number from 0 to 1"),
        (("fixed", 1, math.nan), "backoff jitter nan"),
        (("fixed", 1, True), "backoff jitter True"),
    ],
)
def test_backoffs_that_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        Backoff(*arguments)


@pytest.mark.parametrize("name", ["fixed", "exponential"])
def test_names_of_strategies_that_are_taken(name: str) -> None:
    with pytest.raises(
        InvalidOption, match=rf"'{name}': is a name of EchoMQ's own; use Backoff.{name}\(…\), or another"
    ):
        Backoff.custom(name)


def test_which_jobs_to_keep() -> None:
    assert Keep(age=timedelta(days=1)) == Keep(-1, 86_400.0)
    assert Keep.ALL == Keep()
    assert Keep.NONE == Keep(0)
    assert repr(Keep.DEFAULT) == "Keep.DEFAULT"
    assert Keep.DEFAULT != Keep.ALL


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-2,), "Keep count=-2: must be a whole number from -1 to"),
        ((1.5,), "Keep count=1.5"),
        ((True,), "Keep count=True"),
        ((10**13,), "Keep count="),
        ((1, -1), "Keep age=-1: must be from 0"),
        ((1, "1"), "Keep age='1': must be seconds"),
    ],
)
def test_retentions_that_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        Keep(*arguments)


@pytest.mark.parametrize(("arguments", "message"), [((0, 1), "limiter max=0"), ((1, 0), "limiter duration=0")])
def test_limiters_that_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        Limiter(*arguments)


# -- jobs (protocol 2.3) -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "job name '': must be a text that is not empty"),
        ({"name": None}, "job name None: must be a text"),
        ({"priority": 2_097_152}, "priority=2097152: must be a whole number from 0 to 2097151"),
        ({"priority": 1.5}, "priority=1.5: must be a whole number"),
        ({"priority": -1}, "priority=-1: must be a whole number"),
        ({"priority": "1"}, "priority='1': must be a whole number"),
        ({"priority": None}, "priority=None: must be a whole number"),
        ({"attempts": -1}, "attempts=-1: must be a whole number"),
        ({"attempts": True}, "attempts=True: must be a whole number"),
        ({"attempts": 2.0}, "attempts=2.0: must be a whole number"),
        ({"delay": -5}, "delay=-5: must be from 0 to 315360000 seconds"),
        ({"delay": "100"}, "delay='100': must be seconds"),
        ({"at": datetime(2026, 1, 1)}, r"at=.*: must be a datetime with a time zone, such as datetime\.now"),  # noqa: DTZ001
        ({"at": datetime(2026, 1, 1, tzinfo=Nowhere())}, "at=.*: must be a datetime with a time zone"),
        ({"at": 1_700_000_000}, "at=1700000000: must be a datetime with a time zone"),
        ({"at": datetime(1969, 1, 1, tzinfo=UTC)}, "at=.*: must be from the year 1970 to the year 2100"),
        ({"at": datetime(9999, 1, 1, tzinfo=UTC)}, "at=.*: must be from the year 1970 to the year 2100"),
        ({"timestamp": datetime(2026, 1, 1)}, "timestamp=.*: must be a datetime with a time zone"),  # noqa: DTZ001
        ({"at": datetime(2026, 1, 1, tzinfo=UTC), "delay": 0}, "at=.* and delay=0: give one of them"),
        ({"lifo": 1}, "lifo=1: must be True or False"),
        ({"lifo": 0}, "lifo=0: must be True or False"),
        (
            {"backoff": "exponential"},
            r"backoff='exponential': must be a Backoff, such as Backoff.exponential\(1\), or seconds",
        ),
        ({"backoff": -1}, "backoff=-1: must be from 0"),
        (
            {"remove_on_complete": True},
            r"remove_on_complete=True: must be a Keep, such as Keep\(count=1000\), Keep.ALL",
        ),
        ({"remove_on_fail": 10}, "remove_on_fail=10: must be a Keep"),
        ({"stack_trace_limit": -1}, "stack_trace_limit=-1: must be a whole number"),
        ({"job_id": "12"}, "job_id='12': must not be a whole number"),
    ],
)
def test_jobs_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        JobSpec(**{"name": "paint", **options})


def test_errors_of_options_are_value_errors() -> None:
    with pytest.raises(ValueError, match="priority"):
        JobSpec("paint", priority=-1)


def test_a_plain_job_is_known_as_such() -> None:
    assert JobSpec("paint", {"a": 1}).is_plain
    for options in (
        {"job_id": "a"}, {"delay": 0}, {"at": datetime(2026, 1, 1, tzinfo=UTC)}, {"priority": 1}, {"lifo": True},
        {"attempts": 1}, {"backoff": 0}, {"remove_on_complete": Keep.ALL}, {"remove_on_fail": Keep.ALL},
        {"stack_trace_limit": 0}, {"timestamp": datetime(2026, 1, 1, tzinfo=UTC)},
    ):  # fmt: skip
        assert not JobSpec("paint", **options).is_plain, options
