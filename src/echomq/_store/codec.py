"""Between Python and what stands on the server: JSON text, milliseconds, option names. Nobody else knows them."""

from __future__ import annotations

import enum
import hashlib
import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import msgspec

from echomq import event_types as kinds
from echomq._log import said_by
from echomq._types import is_model, parts_of_model, plain_scalar
from echomq.errors import EncodingError, InvalidOption
from echomq.event_types import Event
from echomq.models import JOB_STATES, DeadLetter, JobOptions, JobState, Parent
from echomq.options import (
    KEEP_COMPLETED,
    KEEP_FAILED,
    MAX_DELAY,
    MAX_LINES,
    UNSET,
    Backoff,
    Deduplication,
    Duration,
    JobSpec,
    Keep,
    check_deduplication_id,
    shown,
    to_seconds,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


# -- JSON --------------------------------------------------------------------------------------------------------------


_encoder: Final = msgspec.json.Encoder(enc_hook=plain_scalar)
_decoder: Final = msgspec.json.Decoder()
_packer: Final = msgspec.msgpack.Encoder()
_unpacker: Final = msgspec.msgpack.Decoder(dict[str, Any])


def encode_json(value: Any, root: str) -> bytes:
    """Compact JSON, UTF-8. Whole numbers keep every digit; lone surrogates are escaped.

    Args:
        value: what to write.
        root: what the value is called in messages: ``data``, ``result``.

    Raises:
        EncodingError: it holds NaN, infinity, a cycle, or something that has no JSON form; names where.
    """
    try:
        text = _encoder.encode(value)
        if b"null" in text and _may_hold_nan(value):  # msgspec writes null for NaN and infinity without a word
            json.dumps(_builtins(value), allow_nan=False)
    except UnicodeEncodeError:  # a lone surrogate, which only an escape can carry
        try:
            return json.dumps(_builtins(value), allow_nan=False, separators=(",", ":")).encode()
        except Exception as error:
            raise _explained(value, root, error) from None
    except Exception as error:  # of what kind, may be up to a property of the caller's object
        raise _explained(value, root, error) from None
    return text


_DEEPEST: Final = 1_000
_in_msgpack: Final = msgspec.msgpack.Encoder(enc_hook=plain_scalar)
_NAN_OR_INFINITY: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""How they begin in MessagePack; other things may look like it."""


def _may_hold_nan(value: Any) -> bool:
    """Whether a value may hold NaN or infinity, told quickly: most nulls are None."""
    try:
        return _NAN_OR_INFINITY.search(_in_msgpack.encode(value)) is not None
    except Exception:  # what only JSON has, such as whole numbers of any size
        return True


def _builtins(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True, enc_hook=plain_scalar)


def _explained(value: Any, root: str, error: Exception) -> EncodingError:
    """Why a value cannot be written, and where the reason stands in it."""
    try:
        fault = _first_fault(value, root)
    except Exception:  # the caller's own code raises, as it has before
        fault = None
    if fault is not None:
        return fault
    if isinstance(error, RecursionError):
        return EncodingError(f"{root} is nested too deep to be written; send less", path=root)
    return EncodingError(f"{root} cannot be written as JSON: {type(error).__name__}: {said_by(error)}", path=root)


def _first_fault(value: Any, root: str) -> EncodingError | None:
    # Not recursive, and not deeper than what can be written at all, because the fault may be that it is too deep.
    above: list[int] = []
    stack: list[Iterator[tuple[str, Any]]] = [iter([(root, value)])]
    while stack:
        for path, item in stack[-1]:
            fault = _fault(item, path, above)
            if fault is not None:
                return fault
            inside = _parts(item, path)
            if inside is not None and len(above) < _DEEPEST:
                above.append(id(item))
                stack.append(inside)
                break
        else:
            stack.pop()
            if above:
                above.pop()
    return None


def _fault(item: Any, path: str, above: list[int]) -> EncodingError | None:
    """What is wrong with this item itself, not with its parts."""
    if isinstance(item, float) and not math.isfinite(item):
        return EncodingError(f"{path} is {float(item)!r}: JSON has no such number; send None or a text", path=path)
    if id(item) in above:
        return EncodingError(f"{path} contains itself: JSON has no cycles; send a copy without it", path=path)
    if isinstance(item, dict):
        for key in item:
            if not isinstance(key, str) and not _can_be_built({key: None}):
                kind = type(key).__name__
                return EncodingError(
                    f"{path} has a key {key!r} of type {kind}: the keys of JSON objects are texts", path=path
                )
    elif _parts(item, path) is None and not _can_be_built(item):
        kind = type(item).__name__
        remedy = "await it, and send what it gives" if inspect.isawaitable(item) else "send its parts, or a text"
        return EncodingError(f"{path} is of type {kind}, which has no JSON form; {remedy}", path=path)
    return None


def _can_be_built(item: Any) -> bool:
    try:
        json.dumps(_builtins(item))
    except Exception:  # whatever its own code raises
        return False
    return True


def _parts(item: Any, path: str) -> Iterator[tuple[str, Any]] | None:
    """The parts of a value with their paths; None for one that has none."""
    if isinstance(item, dict):
        return ((_path_to(path, key), part) for key, part in item.items())
    if isinstance(item, (list, tuple)):
        return ((f"{path}[{index}]", part) for index, part in enumerate(item))
    if isinstance(item, (set, frozenset)):
        return ((f"{path}{{}}", part) for part in item)
    if isinstance(item, enum.Enum):
        return iter([(path, item.value)])
    if is_model(item):
        return ((f"{path}.{name}", part) for name, part in parts_of_model(item))
    kind = type(item)
    for fields in ("__struct_fields__", "__dataclass_fields__"):
        if hasattr(kind, fields):
            names = list(getattr(kind, fields))
            return ((f"{path}.{name}", getattr(item, name)) for name in names if hasattr(item, name))
    return None


def _path_to(path: str, key: Any) -> str:
    return f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{key!r}]"


def decode_json(text: bytes) -> Any:
    """What JSON text says, with whole numbers of any size.

    Raises:
        ValueError: it is no JSON, or nested too deep.
    """
    try:
        try:
            return _decoder.decode(text)
        except msgspec.DecodeError:
            return json.loads(text)  # lone surrogates, NaN of foreign writers
    except RecursionError:
        raise ValueError("it is nested too deep to be read") from None


def pack(value: dict[str, Any]) -> bytes:
    """A few rare values for a script, in one argument."""
    return _packer.encode(value)


# -- time --------------------------------------------------------------------------------------------------------------


def to_ms(seconds: float) -> int:
    """Whole milliseconds, at least 1 for anything above 0."""
    return max(math.ceil(seconds * 1000 - 1e-6), 0)


def duration_ms(value: Duration, name: str) -> int:
    """A caller's duration in milliseconds."""
    return to_ms(to_seconds(value, name))


def moment_ms(moment: datetime) -> int:
    """An aware datetime as milliseconds since the epoch."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def to_moment(ms: int | float) -> datetime:
    """Milliseconds since the epoch as an aware datetime."""
    return _EPOCH + timedelta(milliseconds=ms)


def as_whole(text: object) -> int | None:
    """A whole number that a reply holds, as far as it is exact everywhere; None for anything else."""
    try:
        number = int(text)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        return None
    return number if -_EXACT < number < _EXACT else None


# -- states and ids ----------------------------------------------------------------------------------------------------

_STATES_OUT: Final[dict[JobState, str]] = {
    state: "waiting-children" if state == "waiting_children" else state for state in JOB_STATES
}
_STATES_IN: Final[dict[bytes, JobState]] = {text.encode(): state for state, text in _STATES_OUT.items()}


def state_out(state: JobState) -> str:
    """A state as the scripts call it."""
    return _STATES_OUT[state]


def state_in(text: bytes) -> JobState | None:
    """A state that a script named; None for ``unknown``."""
    return _STATES_IN.get(text)


def id_out(job_id: str) -> bytes:
    """An id as it stands on the server; also one of another program that is no UTF-8."""
    try:
        return job_id.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidOption(
            f"id {shown(job_id)}: holds a lone surrogate, which no id on a server has; remove it"
        ) from None


def decode_id(job_id: bytes) -> str:
    """An id that a script named, as users see it."""
    return job_id.decode("utf-8", "surrogateescape")


def event_field(value: str | int | float | bool) -> str:
    """A value of an event as it stands there: texts as they are, numbers and truth values as JSON has them."""
    return value if isinstance(value, str) else encode_json(value, "field").decode()


# -- jobs to be added --------------------------------------------------------------------------------------------------

NewJob = tuple[bytes | str, ...]
"""The nine arguments of one job, as addJobs takes them."""

MORE: Final = 7
"""Where among them what only some jobs have is packed; empty for others."""

_PLAIN_OPTS: Final = b'{"attempts":0}'
_LIFO: Final = pack({"lifo": True})


def backoff_opts(backoff: Backoff | Duration) -> dict[str, Any]:
    """A back-off as it is stored."""
    if not isinstance(backoff, Backoff):
        return {"type": "fixed", "delay": duration_ms(backoff, "backoff")}
    made: dict[str, Any] = {"type": backoff.type, "delay": to_ms(backoff.delay)}
    if backoff.jitter:
        made["jitter"] = backoff.jitter
    return made


def _keep_opts(keep: Keep, target: Keep) -> bool | int | dict[str, Any]:
    if keep == Keep.DEFAULT:  # also a copy of it
        keep = target
    if keep.age is None:
        return True if keep.count == 0 else False if keep.count < 0 else keep.count
    made: dict[str, Any] = {"age": math.ceil(to_seconds(keep.age, "age", most=1e10))}
    if keep.count >= 0:
        made["count"] = keep.count
    return made


@lru_cache(maxsize=512)
def _encode_opts(
    attempts: int,
    backoff: Backoff | Duration | None,
    delay: int,
    priority: int,
    lifo: bool,
    remove_on_complete: Keep | None,
    remove_on_fail: Keep | None,
    stack_trace_limit: int | None,
) -> bytes:
    opts: dict[str, Any] = {"attempts": attempts}
    if backoff is not None:
        opts["backoff"] = backoff_opts(backoff)
    if delay:
        opts["delay"] = delay
    if priority:
        opts["priority"] = priority
    if lifo:
        opts["lifo"] = True
    if remove_on_complete is not None:
        opts["removeOnComplete"] = _keep_opts(remove_on_complete, KEEP_COMPLETED)
    if remove_on_fail is not None:
        opts["removeOnFail"] = _keep_opts(remove_on_fail, KEEP_FAILED)
    if stack_trace_limit is not None:
        opts["stackTraceLimit"] = stack_trace_limit
    return _encoder.encode(opts)


_POLICIES: Final = {
    "extend": "extend", "replace": "replace", "keep_last_if_active": "keepLastIfActive", "reschedule": "reschedule",
}  # fmt: skip
"""The kinds of a deduplication, as they are called in Python and on the server."""


def _deduplication(spec: JobSpec, data: bytes) -> dict[str, Any] | None:
    """A job's deduplication as it is stored: what is set."""
    policy = Deduplication(spec.deduplication) if isinstance(spec.deduplication, str) else spec.deduplication
    if spec.unique_by is not None:
        made: dict[str, Any] = {"id": _unique_id(spec.name, data, spec.unique_by)}
    elif policy is not None:
        made = {"id": policy.id}
    else:
        return None
    if policy is not None:
        if policy.ttl is not None:
            made["ttl"] = duration_ms(policy.ttl, "ttl")
        made |= {stored: True for name, stored in _POLICIES.items() if getattr(policy, name)}
    return made


def _unique_id(name: str, data: bytes, keys: Sequence[str]) -> str:
    """The name and a hash of these values of the data. In whatever order keys are named or stand, the id is the same."""
    values = decode_json(data)
    if not isinstance(values, dict):
        raise InvalidOption(
            f"unique_by={shown(keys)}: names keys of data, and data is {shown(values)}; make it an object, or give a "
            "deduplication id"
        )
    missing = [key for key in keys if key not in values]
    if missing:
        there = ", ".join(map(repr, values)) or "none"
        raise InvalidOption(
            f"unique_by={shown(keys)}: data has no key {missing[0]!r} (it has: {there}); add it, or leave it out of unique_by"
        )
    canonical = json.dumps({key: values[key] for key in keys}, sort_keys=True, separators=(",", ":"))
    return check_deduplication_id(f"{name}:{hashlib.sha256(canonical.encode()).hexdigest()[:32]}")


def _delay(spec: JobSpec) -> int:
    if spec.delay is not None:
        return duration_ms(spec.delay, "delay")
    policy = spec.deduplication
    if isinstance(policy, Deduplication) and policy.is_debounce and policy.ttl is not None and spec.at is None:
        return duration_ms(policy.ttl, "ttl")
    return 0


def encode_spec(spec: JobSpec) -> NewJob:
    """A job as the nine arguments of addJobs.

    Raises:
        EncodingError: its data has no JSON form, or its name no UTF-8 form.
        InvalidOption: its data lack what ``unique_by`` names.
    """
    data = b"{}" if spec.data is UNSET else encode_json(spec.data, "data")
    try:
        name = spec.name.encode()
    except UnicodeEncodeError:
        raise EncodingError(
            f"job name {spec.name!r} holds a lone surrogate, which has no UTF-8 form; remove it", path="name"
        ) from None
    if spec.is_plain:
        return (name, data, _PLAIN_OPTS, "", "0", "", "0", "", "")
    delay = _delay(spec)
    timestamp = "" if spec.timestamp is None else str(moment_ms(spec.timestamp))
    opts = _encode_opts(
        spec.attempts, spec.backoff, delay, spec.priority, spec.lifo, spec.remove_on_complete, spec.remove_on_fail,
        spec.stack_trace_limit,
    )  # fmt: skip
    if spec.job_id is not None:
        opts = b'%b,"jobId":%b}' % (opts[:-1], _encoder.encode(spec.job_id))
    if timestamp:
        opts = b'%b,"timestamp":%b}' % (opts[:-1], timestamp.encode())
    if spec.expire_in is not None:
        expire_in = duration_ms(spec.expire_in, "expire_in")
        opts = b'%b,"expireIn":%d}' % (opts[:-1], expire_in)
        if spec.at is not None:  # of which the options say nothing else
            opts = b'%b,"expireAt":%d}' % (opts[:-1], moment_ms(spec.at) + expire_in)
    if spec.keep_logs is not None:
        opts = b'%b,"kl":%d}' % (opts[:-1], spec.keep_logs)
    if spec.omit_context:
        opts = b'%b,"omc":true}' % opts[:-1]
    more: bytes | str = _LIFO if spec.lifo else ""
    de = _deduplication(spec, data)
    if de is not None:
        opts = b'%b,"de":%b}' % (opts[:-1], _encoder.encode(de))
        more = pack({"lifo": spec.lifo, "de": de})
    return (
        name,
        data,
        opts,
        timestamp,
        str(delay),
        "" if spec.at is None else str(moment_ms(spec.at)),
        str(spec.priority),
        more,
        spec.job_id or "",
    )


def carrying(job: NewJob, context: str) -> NewJob:
    """The same job with the context of a trace, for who runs it to go on from (protocol 11.1)."""
    name, data, opts, *rest = job
    assert isinstance(opts, bytes)
    return (name, data, b'%b,"tm":%b}' % (opts[:-1], _encoder.encode(context)), *rest)


def sent_once(job: NewJob, token: str, remember: float) -> NewJob:
    """The same job as one sending of an outbox: sent again within so many seconds, it is not added again."""
    more = job[MORE]
    packed: dict[str, Any] = _unpacker.decode(more) if isinstance(more, bytes) else {}
    return (*job[:MORE], pack({**packed, "once": {"id": token, "ttl": to_ms(remember)}}), *job[MORE + 1 :])


# -- outcomes that are forwarded ---------------------------------------------------------------------------------------

OUTCOME_OPTS: Final = '{"attempts":10,"backoff":{"type":"exponential","delay":1000},"outcome":true}'
"""The options of a job that says how another ended: runs again for a quarter of an hour; and ours, by which it is known."""


def is_outcome(options: RunOptions) -> bool:
    """Whether a job says how another ended. Of its own end nobody is told, or they might go round for ever."""
    return options.raw.get("outcome") is True


def is_outcome_job(job: StoredJob) -> bool:
    """Whether a job says how another ended, as far as anybody can read its options."""
    try:
        return is_outcome(job.opts)
    except ValueError:
        return False


def outcome_head(
    job: StoredJob, queue: str, worker: str, status: str, reason: str | None, result_error: str | None
) -> bytes:
    """The data of a job that says how another ended, up to its result; that and the time of the end are the script's to add."""
    known = {
        "job_id": job.id,
        "queue": queue,
        "name": job.name,
        "status": status,
        "reason": reason,
        "attempt": job.attempts_made + 1,
        "worker": worker,
        "added_at": _iso(job.moment(b"timestamp")),
        "started_at": _iso(job.moment(b"processedOn")),
        "result_error": result_error,
    }
    return encode_json(known, "outcome")[:-1] + b',"result":'


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def with_result(data: bytes, decode: Callable[[bytes], Awaitable[bytes]]) -> bytes:
    """The data of a job that says how another ended, with its result decoded."""
    try:
        parts = _outcomes.decode(data)
    except (ValueError, RecursionError):  # somebody's hand; msgspec's errors are ValueErrors
        return data
    if "result" in parts:
        parts["result"] = msgspec.Raw(await decode(bytes(parts["result"])))
    return _encoder.encode(parts)


_outcomes: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def outcome_job(job_id: str, data: bytes) -> NewJob:
    """Such a job, as the nine arguments of addJobs."""
    opts = f'{OUTCOME_OPTS[:-1]},"jobId":{encode_json(job_id, "job_id").decode()}}}'
    return ("outcome", data, opts, "", "0", "", "0", "", job_id)


# -- jobs as they stand on the server ----------------------------------------------------------------------------------


def keep_rule(keep: Keep, target: Keep) -> str:
    """A retention as the finish script takes it: ``count;age;limit``."""
    if keep == Keep.DEFAULT:  # also a copy of it
        keep = target
    age = "" if keep.age is None else str(math.ceil(to_seconds(keep.age, "age", most=1e10)))
    return f"{keep.count};{age};"


def _keep_numbers(value: Any) -> tuple[float, float | None, float | None] | None:
    """Count (-1: any), age in seconds and limit of a ``removeOnComplete`` or ``removeOnFail``; None if it says nothing."""
    if isinstance(value, bool):
        return (0, None, None) if value else (-1, None, None)
    if isinstance(value, dict):
        count, age, limit = (_number(value.get(part)) for part in ("count", "age", "limit"))
        if count is None and age is None and limit is None:
            return None
        age = None if age is None or age < 0 else age  # a negative one says nothing
        limit = None if limit is None or limit < 0 else limit
        return (-1 if count is None else max(count, -1)), age, limit
    number = _number(value)
    return None if number is None else (max(number, -1), None, None)


def _rule_from_opts(value: Any) -> str | None:
    """A job's own ``removeOnComplete`` or ``removeOnFail`` (protocol 3.5.3); None: the worker's applies."""
    numbers = _keep_numbers(value)
    if numbers is None:
        return None
    count, age, limit = numbers
    return f"{int(count)};{'' if age is None else math.ceil(age)};{'' if limit is None else int(limit)}"


CANCELLED: Final = "cancelled"
"""The reason where none was given."""


class RunOptions(msgspec.Struct, frozen=True):
    """What a worker needs of a job's stored options, read without trust: Node, PHP or a person may have written them.

    Attributes:
        raw: the whole object, BullMQ's stored names.
        keep_completed, keep_failed: retention rules for the finish script, or None for the worker's own.
        keep_logs: lines of its log to keep, or None.
        expire_in: milliseconds after its due time within which it must start, or None.
        expire_at: the end of that time as a moment, where the due time was one.
        delay: milliseconds from when it was made to its due time.
    """

    raw: dict[str, Any]
    attempts: int = 0
    backoff_type: str | None = None
    backoff_delay: float = 0.0
    backoff_jitter: float = 0.0
    lifo: bool = False
    keep_completed: str | None = None
    keep_failed: str | None = None
    stack_trace_limit: int | None = None
    keep_logs: int | None = None
    expire_in: float | None = None
    expire_at: int = 0
    delay: float = 0.0


_MOST: Final = 1e12  # far beyond every option that means something


def _number(value: Any) -> float | None:
    """A number of somebody's JSON, cut to where one can count with it; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return float(min(max(value, -_MOST), _MOST))


_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999: beyond, there is no ``datetime``."""


def _moment_number(value: Any) -> int | None:
    """Milliseconds since the epoch of somebody's JSON; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LAST_MS:
        return None
    return value


_CACHED_OPTS: Final = 512  # bytes: long ones are seldom equal, and would fill the cache


def decode_opts(text: bytes) -> RunOptions:
    """Options from their text. Equal texts are read once, so what comes of it is not for users, who might change it.

    Raises:
        ValueError: the text is no JSON object.
    """
    return _decode_opts_once(text) if len(text) <= _CACHED_OPTS else decode_own_opts(text)


def decode_own_opts(text: bytes) -> RunOptions:
    """The same, read anew: every part of it is the caller's own."""
    raw = decode_json(text)
    if not isinstance(raw, dict):
        raise ValueError(f"opts must be a JSON object, not {type(raw).__name__}")
    backoff, backoff_type, delay, jitter = raw.get("backoff"), None, 0.0, 0.0
    if isinstance(backoff, dict) and isinstance(backoff.get("type"), str) and backoff["type"]:
        backoff_type = backoff["type"]
        delay = (_number(backoff.get("delay")) or 0.0) / 1000
        jitter = min(max(_number(backoff.get("jitter")) or 0.0, 0.0), 1.0)
    elif (milliseconds := _number(backoff)) is not None:
        backoff_type, delay = "fixed", milliseconds / 1000
    limit, lines = _number(raw.get("stackTraceLimit")), _number(raw.get("kl"))
    return RunOptions(
        raw=raw,
        attempts=int(_number(raw.get("attempts")) or 0),
        backoff_type=backoff_type,
        backoff_delay=min(max(delay, 0.0), MAX_DELAY),
        backoff_jitter=jitter,
        lifo=bool(raw.get("lifo")),
        keep_completed=_rule_from_opts(raw.get("removeOnComplete")),
        keep_failed=_rule_from_opts(raw.get("removeOnFail")),
        stack_trace_limit=None if limit is None else int(limit),
        keep_logs=None if lines is None or lines < 1 else int(min(lines, MAX_LINES)),
        expire_in=_number(raw.get("expireIn")),
        expire_at=_moment_number(raw.get("expireAt")) or 0,
        delay=max(_number(raw.get("delay")) or 0.0, 0.0),
    )


_decode_opts_once: Final = lru_cache(maxsize=1024)(decode_own_opts)


def last_start(options: RunOptions, made: int, due: int) -> float | None:
    """Until when a worker must have started a job with ``expire_in``; None for one without.

    Args:
        options: the job's.
        made: its ``timestamp``.
        due: its ``due``: when it was to run, if that was changed after it was added; else 0.
    """
    if options.expire_in is None:
        return None
    return max(max(made + options.delay, due) + options.expire_in, options.expire_at)


def too_late(job: StoredJob, options: RunOptions) -> float | None:
    """Seconds within which a job should have started, if this, its first start, comes later than that.

    One that has failed before, perhaps for this very reason, is run: somebody wants it again.
    """
    if options.expire_in is None or job.attempts_started != 1 or job.attempts_made or b"stacktrace" in job.fields:
        return None
    last = last_start(options, job.number(b"timestamp"), job.number(b"due"))
    return options.expire_in / 1000 if last is not None and job.number(b"processedOn") > last else None


def carried(job: StoredJob) -> str | None:
    """The context of a trace that a job carries, if it can be read."""
    try:
        context = job.opts.raw.get("tm")
    except ValueError:
        return None
    return context if isinstance(context, str) else None


_OF_THIS_LIFE: Final = frozenset(
    "jobId timestamp delay parent fpof cpof idof rdof de repeat repeatJobKey prevMillis deadLetter expireAt".split()
)
"""Options that said something of one job, and nothing of another that is made from it."""


def dead_letter_opts(job: StoredJob, reason: str) -> bytes:
    """The options of the dead letter that a job becomes, up to the time of its end, which the script adds with ``}}``.

    What is ours comes last, so that the script which makes a job of it again can take it off.
    """
    letter = {"id": job.id, "reason": reason, "attemptsMade": job.attempts_made + 1}
    try:
        opts = {name: value for name, value in job.opts.raw.items() if name not in _OF_THIS_LIFE}
        if b"priority" in job.fields:  # which may have been changed since it was added
            opts["priority"] = job.number(b"priority")
        text = encode_json({**opts, "deadLetter": letter}, "opts")
    except ValueError:  # nobody can read them, or write them again; EncodingError is one
        text = encode_json({"deadLetter": letter}, "opts")
    return text[:-2] + b',"failedOn":'


def dead_letter_in(raw: dict[str, Any]) -> DeadLetter | None:
    """What options say of the job that a dead letter was."""
    found = raw.get("deadLetter")
    if not isinstance(found, dict):
        return None
    failed_on = _moment_number(found.get("failedOn"))
    return DeadLetter(
        job_id=str(found.get("id", "")),
        reason=str(found.get("reason", "")),
        attempts_made=int(_number(found.get("attemptsMade")) or 0),
        failed_on=None if failed_on is None else to_moment(failed_on),
    )


def _keep_from_opts(value: Any) -> Keep | None:
    numbers = _keep_numbers(value)
    if numbers is None:
        return None
    count, age, _ = numbers
    return Keep(count=max(int(count), -1), age=None if age is None else min(max(age, 0.0), 1e10))


_NAMED_OPTIONS: Final = frozenset(
    "attempts backoff delay priority lifo removeOnComplete removeOnFail stackTraceLimit kl jobId timestamp expireIn "
    "expireAt omc".split()
)


def _deduplication_from_opts(de: Any) -> Deduplication | None:
    """A stored deduplication as one of ours; None if there is none that ours could be."""
    if not isinstance(de, dict):
        return None
    ttl = _number(de.get("ttl"))
    try:
        return Deduplication(
            de.get("id"),
            ttl / 1000 if ttl else None,
            **{name: de[stored] for name, stored in _POLICIES.items() if stored in de},
        )
    except InvalidOption:
        return None


def public_options(options: RunOptions) -> JobOptions:
    """A job's stored options as users see them."""
    raw = options.raw
    backoff = None
    if options.backoff_type is not None:
        backoff = Backoff(options.backoff_type, min(options.backoff_delay, MAX_DELAY), options.backoff_jitter)
    deduplication = _deduplication_from_opts(raw.get("de"))
    expire_in = _number(raw.get("expireIn"))
    return JobOptions(
        attempts=options.attempts,
        backoff=backoff,
        delay=max(_number(raw.get("delay")) or 0.0, 0.0) / 1000,
        priority=int(_number(raw.get("priority")) or 0),
        lifo=options.lifo,
        remove_on_complete=_keep_from_opts(raw.get("removeOnComplete")),
        remove_on_fail=_keep_from_opts(raw.get("removeOnFail")),
        stack_trace_limit=options.stack_trace_limit,
        keep_logs=options.keep_logs,
        deduplication=deduplication,
        expire_in=None if expire_in is None else max(expire_in, 0.0) / 1000,
        omit_context=bool(raw.get("omc")),
        others={
            name: value
            for name, value in raw.items()
            if name not in _NAMED_OPTIONS and not (name == "de" and deduplication is not None)
        },
    )


_EXACT: Final = 2**53
"""Up to here a whole number is exact, in Lua and JavaScript too."""


class StoredJob:
    """A job's hash as it was read: fields are decoded when they are asked for."""

    __slots__ = ("fields", "id")

    def __init__(self, job_id: str, fields: dict[bytes, bytes]) -> None:
        self.id: str = job_id
        self.fields: dict[bytes, bytes] = fields

    @classmethod
    def from_reply(cls, job_id: bytes, flat: list[bytes]) -> StoredJob:
        """From an id and HGETALL's flat list; a later field of the same name wins."""
        pairs = iter(flat)
        return cls(job_id.decode("utf-8", "surrogateescape"), dict(zip(pairs, pairs, strict=True)))

    @classmethod
    def from_new(cls, job_id: str, job: NewJob, at: int) -> StoredJob:
        """As an add has just stored it, at this time of the server."""
        name, data, opts, timestamp, delay, due, priority = job[:7]
        if due:
            delay = str(max(int(due) - at, 0))
        fields = {
            b"name": name,
            b"data": data,
            b"opts": opts,
            b"timestamp": timestamp.encode() if timestamp else b"%d" % at,  # type: ignore[union-attr]
            b"delay": delay.encode(),  # type: ignore[union-attr]
            b"priority": priority.encode(),  # type: ignore[union-attr]
        }
        if job[MORE] and "de" in (more := _unpacker.decode(job[MORE])):  # type: ignore[arg-type]
            fields[b"deid"] = more["de"]["id"].encode()
        return cls(job_id, fields)  # type: ignore[arg-type]

    def text(self, field: bytes) -> str | None:
        """A field as text, or None."""
        value = self.fields.get(field)
        return None if value is None else value.decode("utf-8", "replace")

    def number(self, field: bytes, default: int = 0) -> int:
        """A field as a whole number; the default where it is absent or none, or too large to be exact everywhere."""
        value = self.fields.get(field)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            try:
                number = int(float(value))
            except (ValueError, OverflowError):
                return default
        return number if -_EXACT < number < _EXACT else default

    def json(self, field: bytes, default: Any = None) -> Any:
        """A field as JSON; the default where it is absent. Raises ``ValueError`` for what is no JSON."""
        value = self.fields.get(field)
        return default if value is None else decode_json(value)

    def moment(self, field: bytes) -> datetime | None:
        """A field as an instant; None where it is absent or none that Python has."""
        value = self.number(field, -1)
        return to_moment(value) if 0 <= value <= _LAST_MS else None

    @property
    def name(self) -> str:
        """The task's name."""
        return self.text(b"name") or ""

    @property
    def opts(self) -> RunOptions:
        """The options. Raises ``ValueError`` where they cannot be read."""
        return decode_opts(self.fields.get(b"opts", b"{}"))

    @property
    def attempts_made(self) -> int:
        """Runs that ended. ``attemptsMade`` is how older writers called it; it no longer moves once we count in ``atm``."""
        return max(self.number(b"attemptsMade"), self.number(b"atm"), 0)

    @property
    def attempts_started(self) -> int:
        """Runs that began."""
        return max(self.number(b"ats"), 0)

    @property
    def starts_of_attempt(self) -> int:
        """Runs that began since an attempt was used up, with the one that goes on: it was put off, or its worker died."""
        return max(self.attempts_started - self.attempts_made, 1)

    @property
    def run(self) -> bytes:
        """What tells the run that a fetch began from every other of this id, also from that of a job added anew (extendLocks)."""
        fields = self.fields
        return b"%b:%b:%b" % (fields.get(b"ats", b""), fields.get(b"processedOn", b""), fields.get(b"timestamp", b""))

    def parent(self) -> Parent | None:
        """Whose child it is."""
        key = self.text(b"parentKey")
        if not key or ":" not in key:
            return None
        queue_key, _, parent_id = key.rpartition(":")
        try:
            named = self.json(b"parent")
        except ValueError:
            named = None
        if isinstance(named, dict) and isinstance(named.get("id"), str) and isinstance(named.get("queueKey"), str):
            return Parent(named["id"], named["queueKey"])  # an id may hold colons
        return Parent(parent_id, queue_key)

    def stacktrace(self) -> list[str]:
        """Tracebacks of failed runs, oldest first; empty where they cannot be read."""
        try:
            traces = self.json(b"stacktrace", [])
        except ValueError:
            return []
        return [trace for trace in traces if isinstance(trace, str)] if isinstance(traces, list) else []


class PlainJob(StoredJob):
    """A job's hash whose data and result were decoded by the queue's codec."""

    __slots__ = ()


# -- events ------------------------------------------------------------------------------------------------------------


def cancel_reason(text: bytes) -> str:
    """What stands in a job for which somebody has asked to cancel it."""
    return text.decode("utf-8", "replace") or CANCELLED


def decode_event(queue: str, entry_id: bytes, fields: Sequence[bytes] | None) -> Event:
    """An entry of a queue's event log (protocol 9). Whatever stands there, something is made of it."""
    place: dict[str, Any] = {"id": entry_id.decode("ascii", "replace"), "queue": queue, "at": event_moment(entry_id)}
    flat = tuple(map(decode_id, fields or ()))
    if len(flat) < 2 or len(flat) % 2 or flat[0] != "event":
        return kinds.Unreadable(**place, reason="its first field is not 'event'", fields=flat)
    named = dict(zip(flat[2::2], flat[3::2], strict=True))
    kind = kinds.KINDS.get(flat[1])
    if kind is None:
        return kinds.Custom(**place, name=flat[1], fields=named)
    try:
        return kind(**place, **{name: read(named) for name, read in _EVENT_FIELDS[kind]})
    except KeyError as missing:
        reason = f"{flat[1]} without {missing.args[0]}"
    except (ValueError, OverflowError) as error:
        reason = f"{flat[1]}: {error}"
    return kinds.Unreadable(**place, reason=reason, fields=flat)


def event_moment(entry_id: bytes) -> datetime:
    """When an entry was written, as its id says."""
    try:
        return to_moment(int(entry_id.partition(b"-")[0]))
    except (ValueError, OverflowError):  # an id that somebody made up, past every date
        return datetime.max.replace(tzinfo=UTC)


_Fields = dict[str, str]


def _text(name: str) -> Callable[[_Fields], str]:
    return lambda named: named[name]


def _whole(name: str) -> Callable[[_Fields], int]:
    return lambda named: int(named[name])


def _read_value(name: str) -> Callable[[_Fields], Any]:
    return lambda named: decode_json(id_out(named[name]))


def _left_out(name: str) -> Callable[[_Fields], int | None]:
    return lambda named: int(named[name]) if name in named else None


_PREVIOUS: Final[dict[str, JobState]] = {
    **{text.decode(): state for text, state in _STATES_IN.items()},
    "wait": "waiting",  # as Node's removals call it
    "paused": "waiting",
}

_JOB: Final = ("job_id", _text("jobId"))
_FROM: Final = ("previous", lambda named: _PREVIOUS.get(named.get("prev", "")))

_EVENT_FIELDS: Final[dict[type[Event], tuple[tuple[str, Callable[[_Fields], Any]], ...]]] = {
    kinds.Added: (_JOB, ("name", _text("name"))),
    kinds.Waiting: (_JOB, _FROM),
    kinds.WaitingChildren: (_JOB, _FROM),
    kinds.Delayed: (_JOB, ("until", lambda named: to_moment(float(named["delay"])))),
    kinds.Active: (_JOB, _FROM),
    kinds.Progress: (_JOB, ("progress", _read_value("data")), ("left_out", _left_out("dataBytes"))),
    kinds.Completed: (
        _JOB,
        ("return_value", _read_value("returnvalue")),
        ("left_out", _left_out("resultBytes")),
        ("error", lambda named: named.get("resultError")),
        _FROM,
    ),
    kinds.Failed: (_JOB, ("reason", _text("failedReason")), _FROM),
    kinds.RetriesExhausted: (_JOB, ("attempts_made", _whole("attemptsMade"))),
    kinds.Stalled: (_JOB,),
    kinds.Removed: (_JOB, _FROM),
    kinds.Duplicated: (_JOB,),
    kinds.Deduplicated: (
        _JOB,
        ("deduplication_id", _text("deduplicationId")),
        ("deduplicated_job_id", _text("deduplicatedJobId")),
    ),
    kinds.Debounced: (_JOB, ("debounce_id", _text("debounceId"))),
    kinds.Cleaned: (("count", _whole("count")),),
    kinds.Paused: (),
    kinds.Resumed: (),
    kinds.Drained: (),
    kinds.Skipped: (_JOB, ("late", lambda named: int(named["late"]) / 1000)),
    kinds.Cancelled: (_JOB, ("reason", _text("reason"))),
    kinds.Expired: (_JOB,),
}
