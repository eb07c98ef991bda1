"""What goes to the server and comes back: JSON text, times, options, jobs."""

from __future__ import annotations

import copy
import dataclasses
import enum
import json
import math
import pickle
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq._store.codec import (
    StoredJob,
    decode_json,
    decode_opts,
    encode_json,
    encode_spec,
    id_out,
    keep_rule,
    moment_ms,
    pack,
    public_options,
    to_moment,
    to_ms,
)
from echomq._types import plain_scalar
from echomq.errors import EncodingError
from echomq.models import JobOptions, Parent
from echomq.options import Backoff, JobSpec, Keep

NAN, INF = float("nan"), float("inf")


class Color(enum.Enum):
    RED = "red"
    NONE = NAN


class Level(enum.IntEnum):
    HIGH = 2


@dataclasses.dataclass
class Item:
    name: str
    price: Any = None


class Seat(msgspec.Struct):
    row: int
    note: Any = None


class Renamed(msgspec.Struct, rename="camel", tag="seat"):
    seat_number: Any


class Word(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


class Ratio(float):
    pass


def nested(depth: int, innermost: Any = None) -> Any:
    for _ in range(depth):
        innermost = [innermost]
    return innermost


# -- JSON: what can be written ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ("s", '"s"'),
        (5, "5"),
        ([1], "[1]"),
        (True, "true"),
        ({"a": 1, "s": "é", "n": None, "arr": []}, '{"a":1,"s":"é","n":null,"arr":[]}'),  # protocol, vector 2
        (1.0, "1.0"),
        (2**64, "18446744073709551616"),
        (-(2**200), str(-(2**200))),
        ([2**64, None], "[18446744073709551616,null]"),
        ("null", '"null"'),
        ("\ud800", '"\\ud800"'),
        ({"é\udfff": ["\ud83d", None]}, '{"\\u00e9\\udfff":["\\ud83d",null]}'),
        ("🙂/\n", '"🙂/\\n"'),
        (Item("chair", 2.5), '{"name":"chair","price":2.5}'),
        (Seat(3), '{"row":3,"note":null}'),
        (Renamed(None), '{"type":"seat","seatNumber":null}'),
        (Renamed("\ud800"), '{"type":"seat","seatNumber":"\\ud800"}'),
        ((1, 2), "[1,2]"),
        ({1: "a", Color.RED: "b"}, '{"1":"a","red":"b"}'),
        ({7}, "[7]"),
        (frozenset({7}), "[7]"),
        ([Color.RED, Level.HIGH], '["red",2]'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Decimal("1.10"), '"1.10"'),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), '"2026-01-02T03:00:00Z"'),
        (date(2026, 1, 2), '"2026-01-02"'),
        ([Word("a"), Ratio(0.5)], '["a",0.5]'),
        (b"abc", '"YWJj"'),
    ],
)
def test_what_json_text_a_value_has(value: Any, text: str) -> None:
    assert encode_json(value, "data").decode() == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(st.characters(exclude_categories=())), inner),
    max_leaves=20,
)  # fmt: skip


def joined(text: str) -> str:
    """Two surrogates side by side are one character after a round trip."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def rejoined(value: Any) -> Any:
    if isinstance(value, str):
        return joined(value)
    if isinstance(value, list):
        return [rejoined(item) for item in value]
    if isinstance(value, dict):
        return {joined(key): rejoined(item) for key, item in value.items()}
    return value


@given(json_values)
def test_every_json_value_comes_back(value: Any) -> None:
    text = encode_json(value, "data")
    assert rejoined(decode_json(text)) == rejoined(value)
    assert rejoined(json.loads(text)) == rejoined(value)  # as anybody else reads it


# -- JSON: what cannot ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        (NAN, "data", "is nan: JSON has no such number"),
        ({"items": [1, 2, 3, {"price": INF}]}, "data.items[3].price", "is inf: JSON has no such number"),
        ({"items": [None, -INF]}, "data.items[1]", "is -inf"),
        ({"with space": {"x": NAN}}, "data['with space'].x", "is nan"),
        ({1: NAN}, "data[1]", "is nan"),
        (Item("chair", NAN), "data.price", "is nan"),
        ([Seat(1, {"a": NAN})], "data[0].note.a", "is nan"),
        (Renamed([NAN]), "data.seat_number[0]", "is nan"),
        ((1, NAN), "data[1]", "is nan"),
        ({NAN}, "data{}", "is nan"),
        (Color.NONE, "data", "is nan"),
        (Ratio("nan"), "data", "is nan"),
        (["\ud800", NAN], "data[1]", "is nan"),
        ({"when": object()}, "data.when", "is of type object, which has no JSON form; send its parts, or a text"),
        ([1, 1j], "data[1]", "is of type complex, which has no JSON form"),
        (["\ud800", object()], "data[1]", "is of type object"),
        ((x for x in "ab"), "data", "is of type generator"),
        ({"a": {(1, 2): 3}}, "data.a", r"has a key \(1, 2\) of type tuple"),
        ({True: 1}, "data", "has a key True of type bool"),
        ({None: 1}, "data", "has a key None of type NoneType"),
        (nested(100_000), "data", "is nested too deep"),
        (nested(100, object()), "data" + 100 * "[0]", "is of type object"),
    ],
)  # fmt: skip
def test_what_has_no_json_form_is_named_with_its_place(value: Any, path: str, reason: str) -> None:
    with pytest.raises(EncodingError, match=reason) as caught:
        encode_json(value, "data")
    assert caught.value.path == path
    assert str(caught.value).startswith(caught.value.path)


def test_what_was_not_awaited_is_told_as_that() -> None:
    async def enqueue() -> None: ...

    forgotten = enqueue()
    with pytest.raises(EncodingError, match="result is of type coroutine, which has no JSON form; await it, and send"):
        encode_json(forgotten, "result")
    forgotten.close()


def test_a_number_of_too_many_digits_is_refused() -> None:
    with pytest.raises(EncodingError, match="data is of type int, which has no JSON form"):
        encode_json(10**5_000, "data")


def test_a_value_that_contains_itself_is_named() -> None:
    loop: dict[str, Any] = {"a": []}
    loop["a"].append(loop)
    with pytest.raises(EncodingError, match=r"data\.a\[0\] contains itself"):
        encode_json(loop, "data")
    twice = [1]
    assert encode_json([twice, twice, None], "data") == b"[[1],[1],null]"


def test_what_the_callers_own_code_raises_is_reported() -> None:
    class Broken(enum.Enum):
        A = object()

    with pytest.raises(EncodingError, match="data is of type object"):
        encode_json(Broken.A, "data")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing can be said about it")


class Mean:
    """Looks like a model of pydantic, and cannot be written."""

    __pydantic_validator__ = None
    model_fields: ClassVar[dict[str, Any]] = {}

    def model_dump(self, **options: Any) -> Any:
        raise Mute


def test_so_is_what_cannot_say_what_it_is() -> None:
    with pytest.raises(EncodingError, match="data cannot be written as JSON: Mute: its message cannot be read"):
        encode_json({"mean": [Mean()]}, "data")


# What JSON has, what only it has, what only looks like NaN in MessagePack, and what has no JSON form at all.
any_scalar = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()), max_size=6)
    | st.binary(max_size=12) | st.decimals() | st.datetimes() | st.timedeltas()
    | st.sampled_from(["null", b"\xcb\x7f\xf0", bytearray(b"\xcb\xff\xff"), "\u02ff", 2**64, -(2**63) - 1, 1j, object()])
    | st.sampled_from([Color.RED, Color.NONE, Level.HIGH, Word("a"), Ratio(0.5), Ratio("nan"), Ratio("-inf")])
)  # fmt: skip
any_key = st.text(max_size=3) | st.integers() | st.sampled_from([Color.RED, Level.HIGH, None])
any_value = st.recursive(
    any_scalar,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_key, inner, max_size=4) | st.tuples(inner, inner)
    | st.builds(Item, st.just("chair"), inner) | st.builds(Seat, st.just(3), inner) | st.builds(Renamed, inner),
    max_leaves=12,
)  # fmt: skip


@given(any_value)
def test_what_is_no_number_of_json_is_refused_wherever_it_stands(value: Any) -> None:
    try:
        text = encode_json(value, "data")
    except EncodingError:
        text = None
    try:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=plain_scalar)
        expected = json.loads(json.dumps(plain, allow_nan=False))
    except Exception:
        assert text is None
    else:
        assert text is not None
        assert json.loads(text) == expected


# -- JSON: reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"123456789012345678901234567890", 123456789012345678901234567890),
        (b'"\\ud800"', "\ud800"),
        (b"Infinity", INF),
        (b"1e400", INF),
        (b' {"a" : [1 , 2]} ', {"a": [1, 2]}),
        (b'"\\/\\u00e9"', "/é"),
    ],
)
def test_json_of_others_is_read(text: bytes, value: Any) -> None:
    assert decode_json(text) == value


@pytest.mark.parametrize(
    "text", [b"", b"notjson", b"{", b"1 2", b'"\xff"', b"[" * 100_000, b'["\\ud800",' + b"[" * 100_000 + b"]" * 100_001]
)
def test_what_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # of any kind
        decode_json(text)


# -- time -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "milliseconds"), [(0, 0), (0.0001, 1), (0.001, 1), (0.1, 100), (1.0005, 1001), (0.3, 300), (5, 5000)]
)
def test_seconds_become_whole_milliseconds_and_none_is_lost(seconds: float, milliseconds: int) -> None:
    assert to_ms(seconds) == milliseconds


@given(st.integers(0, 4_102_444_800_000))
def test_moments_come_back(milliseconds: int) -> None:
    assert moment_ms(to_moment(milliseconds)) == milliseconds


def test_a_moment_of_any_zone_is_the_same_moment() -> None:
    assert moment_ms(datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))) == moment_ms(
        datetime(2026, 1, 1, tzinfo=UTC)
    )


# -- jobs to be added -------------------------------------------------------------------------------------------------------


def test_a_plain_job() -> None:
    assert encode_spec(JobSpec("paint")) == (b"paint", b"{}", b'{"attempts":0}', "", "0", "", "0", "", "")


@pytest.mark.parametrize(
    ("options", "stored"),
    [
        (
            {"attempts": 3, "backoff": 0.5, "remove_on_complete": Keep.NONE, "remove_on_fail": Keep(5, 10)},
            {
                "attempts": 3,
                "backoff": {"type": "fixed", "delay": 500},
                "removeOnComplete": True,
                "removeOnFail": {"age": 10, "count": 5},
            },
        ),  # protocol, vector 7
        (
            {"backoff": Backoff.exponential(1, jitter=0.5)},
            {"attempts": 0, "backoff": {"type": "exponential", "delay": 1000, "jitter": 0.5}},
        ),
        ({"backoff": timedelta(seconds=2)}, {"attempts": 0, "backoff": {"type": "fixed", "delay": 2000}}),
        ({"backoff": Backoff.custom("mine", 3)}, {"attempts": 0, "backoff": {"type": "mine", "delay": 3000}}),
        ({"delay": 0.1, "priority": 7, "lifo": True}, {"attempts": 0, "delay": 100, "priority": 7, "lifo": True}),
        ({"remove_on_complete": Keep.ALL, "remove_on_fail": Keep(9)},
         {"attempts": 0, "removeOnComplete": False, "removeOnFail": 9}),
        ({"remove_on_complete": Keep.DEFAULT, "remove_on_fail": Keep.DEFAULT},
         {"attempts": 0, "removeOnComplete": {"age": 86_400, "count": 100_000},
          "removeOnFail": {"age": 2_592_000, "count": 100_000}}),
        ({"job_id": 'a"b', "timestamp": to_moment(1_700_000_000_000), "stack_trace_limit": 0},
         {"attempts": 0, "jobId": 'a"b', "timestamp": 1_700_000_000_000, "stackTraceLimit": 0}),
    ],
)  # fmt: skip
def test_options_as_they_are_stored(options: dict[str, Any], stored: dict[str, Any]) -> None:
    assert json.loads(encode_spec(JobSpec("paint", **options))[2]) == stored


def test_a_copy_of_the_default_retention_is_the_default() -> None:
    for keep in (Keep.DEFAULT, copy.deepcopy(Keep.DEFAULT), pickle.loads(pickle.dumps(Keep.DEFAULT))):
        assert keep_rule(keep, Keep(count=5)) == "5;;"
        assert json.loads(encode_spec(JobSpec("n", remove_on_fail=keep))[2])["removeOnFail"] == {
            "age": 2_592_000,
            "count": 100_000,
        }


def test_what_the_script_gets() -> None:
    due = to_moment(1_800_000_000_000)
    spec = JobSpec("paint", [1], job_id="a", at=due, priority=2, lifo=True, timestamp=to_moment(1_700_000_000_000))
    name, data, _, *rest = encode_spec(spec)
    assert (name, data) == (b"paint", b"[1]")
    assert rest == ["1700000000000", "0", "1800000000000", "2", pack({"lifo": True}), "a"]


def test_a_name_without_utf8_form_is_refused() -> None:
    with pytest.raises(EncodingError, match=r"job name 'a.*' holds a lone surrogate"):
        encode_spec(JobSpec("a\ud800"))


options_of_any_kind = st.fixed_dictionaries(
    {},
    optional={
        "attempts": st.integers(0, 10**12),
        "backoff": st.builds(
            Backoff,
            st.text(st.characters(codec="utf-8"), min_size=1),
            st.integers(0, 10**9).map(lambda ms: ms / 1000),
            st.floats(0, 1),
        ),
        "priority": st.integers(0, 2_097_151),
        "lifo": st.booleans(),
        "remove_on_complete": st.builds(Keep, st.integers(1, 10**12), st.none() | st.integers(0, 10**9)),
        "remove_on_fail": st.sampled_from([Keep.ALL, Keep.NONE]),
        "stack_trace_limit": st.integers(0, 10**12),
    },
)


@given(options_of_any_kind)
def test_options_come_back(options: dict[str, Any]) -> None:
    read = public_options(decode_opts(bytes(encode_spec(JobSpec("paint", **options))[2])))  # type: ignore[arg-type]
    assert read == JobOptions(**options)


# -- jobs as they stand on the server ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"{}", JobOptions()),
        (b'{"attempts":"x","backoff":true,"removeOnComplete":"x","stackTraceLimit":null}', JobOptions()),
        (b'{"backoff":500}', JobOptions(backoff=Backoff.fixed(0.5))),
        (b'{"backoff":{"type":"","delay":1}}', JobOptions()),
        (b'{"backoff":{"type":"mine","delay":-1,"jitter":7}}', JobOptions(backoff=Backoff("mine", 0.0, 1.0))),
        (b'{"removeOnComplete":1e400,"attempts":1e400,"backoff":1e400}', JobOptions()),
        (
            b'{"removeOnComplete":true,"removeOnFail":false}',
            JobOptions(remove_on_complete=Keep(0), remove_on_fail=Keep()),
        ),
        (b'{"removeOnFail":{"age":10,"limit":5}}', JobOptions(remove_on_fail=Keep(-1, 10))),
        (b'{"removeOnFail":{}}', JobOptions()),
        (b'{"kl":0}', JobOptions()),
        (b'{"kl":1e400}', JobOptions()),
        (b'{"kl":7,"tm":"x","jobId":"a"}', JobOptions(keep_logs=7, others={"tm": "x"})),
    ],
)
def test_options_of_others_are_read_without_trust(text: bytes, expected: JobOptions) -> None:
    assert public_options(decode_opts(text)) == expected


@pytest.mark.parametrize("text", [b"[]", b"7", b"no", b""])
def test_options_that_are_no_object_are_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # of any kind
        decode_opts(text)


def stored(**fields: str) -> StoredJob:
    return StoredJob("1", {name.encode(): value.encode() for name, value in fields.items()})


def test_numbers_are_read_without_trust() -> None:
    job = stored(ats="3", stc="x", atm="2", delay="1.5", priority="1e999")
    assert [job.number(name) for name in (b"ats", b"stc", b"delay", b"priority", b"none")] == [3, 0, 1, 0, 0]
    assert stored(attemptsMade="4", atm="2").attempts_made == 4
    assert stored(processedOn="").moment(b"processedOn") is None


def test_traces_that_cannot_be_read_are_none() -> None:
    assert stored(stacktrace='["a","b",7]').stacktrace() == ["a", "b"]
    assert stored(stacktrace="no").stacktrace() == stored(stacktrace="7").stacktrace() == stored().stacktrace() == []


def test_the_parent() -> None:
    assert stored().parent() is None
    by_key = stored(parentKey="emq:{P}:pp")
    assert by_key.parent() == Parent("pp", "emq:{P}")
    by_field = stored(parentKey="bull:P:a:b:c", parent='{"id":"a:b:c","queueKey":"bull:P"}')
    assert by_field.parent() == Parent("a:b:c", "bull:P")


def test_an_id_of_any_bytes_comes_back() -> None:
    job = StoredJob.from_reply(b"\xffa", [b"name", b"x"])
    assert id_out(job.id) == b"\xffa"


def test_a_job_just_added_reads_as_it_stands() -> None:
    new = encode_spec(JobSpec("paint", {"a": 1}, at=to_moment(5_000)))
    job = StoredJob.from_new("1", new, 2_000)
    assert (job.name, job.json(b"data"), job.number(b"delay")) == ("paint", {"a": 1}, 3_000)
    assert job.moment(b"timestamp") == to_moment(2_000)
    assert not math.isnan(job.number(b"priority"))
