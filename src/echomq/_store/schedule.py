"""Schedules: made, changed, paused and read here; their next iteration is made when one starts, by the worker that starts it.

(Protocol 3.24.) A schedule is a hash of texts under BullMQ's names. Its iterations carry the rhythm in ``opts.repeat``, and
there Node carries on what it does not know itself: ``missed``, ``grace`` and ``spread``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Protocol, TypeGuard

from echomq import _cron
from echomq._redis.wire import Argument, Reply
from echomq._store.call import Patience
from echomq._store.codec import (
    NewJob,
    RunOptions,
    StoredJob,
    decode_json,
    decode_opts,
    decode_own_opts,
    duration_ms,
    encode_json,
    id_out,
    moment_ms,
    public_options,
    to_moment,
)
from echomq._store.line import Added, Line
from echomq.errors import BrokenKey, InvalidOption, StateError
from echomq.models import ScheduleInfo
from echomq.options import Cron, Duration, Every, MissedRuns

_ADVANCE, _UPSERT, _GET = "advanceScheduler-15", "upsertScheduler-16", "getSchedulers-2"
_PAUSE, _REMOVE = "pauseScheduler-13", "removeScheduler-6"
_DEFINITION = 3
_GOES_ON, _AGAIN, _PAUSED, _NONE_AT_ALL, _CHANGED = 1, 2, 3, 4, 5

_log = logging.getLogger("echomq")

_FROM_SCRIPT: Final = ("jobId", "delay", "timestamp", "prevMillis")
_NOT_OF_A_TEMPLATE: Final = (*_FROM_SCRIPT, "repeat", "repeatJobKey", "de", "parent")
_TRIES = 32
_CHUNK = 100
_ALWAYS: Final = 2**53 - 1
"""How far back slots are caught up with where nobody said so: any number of milliseconds."""


class _Caller(Protocol):
    """Calls scripts, as a lane does."""

    async def call(self, name: str, args: Sequence[Argument], patience: Patience) -> Reply: ...


class _InLine:
    """Calls them in a queue's line, which has its own patience."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def call(self, name: str, args: Sequence[Argument], _: Patience) -> Reply:
        return await self._line.call(name, args)  # type: ignore[no-any-return]


# -- by the worker -----------------------------------------------------------------------------------------------------


class Schedules:
    """Advances schedules, through a lane of its own."""

    def __init__(self, lane: _Caller) -> None:
        self._lane = lane
        self._turn = asyncio.Lock()

    async def advance(self, job: StoredJob, patience: Patience) -> float | None:
        """Makes the iteration that follows this job, if it is the current one of a schedule that goes on.

        Returns:
            How many seconds late the job is if its schedule skips runs that are so late; else None.

        Raises:
            InvalidOption: its pattern, time zone or end cannot be read.
            BrokenKey: something beside the job cannot be read.
        """
        scheduler_id = job.text(b"rjk")
        repeat = job.opts.raw.get("repeat")
        if scheduler_id is None:
            return None
        if not _has_rhythm(repeat):
            repeat = await self._definition(job, scheduler_id, patience)
            if repeat is None:
                return None
        now = job.number(b"processedOn")  # the server's now, at the fetch
        count = int(_number(repeat.get("count")) or 0) + 1
        limit, end = _number(repeat.get("limit")), _instant_ms(repeat.get("endDate"))
        if limit is None or count <= limit:  # past the end too: slots before it may be caught up with
            await self._next(job, scheduler_id, repeat, count, now, end, patience)
        return _too_late(job, repeat, now)

    async def _definition(self, job: StoredJob, scheduler_id: str, patience: Patience) -> dict[str, Any] | None:
        """What the job's own ``opts.repeat`` would say, from its scheduler; None if it is not the current one of a schedule."""
        reply = await self._called([scheduler_id, id_out(job.id), "", "", "0", "", "", "", "", ""], patience)
        assert isinstance(reply, list)
        _, code, flat, _ = reply
        if code != _DEFINITION:
            return None
        fields = _pairs(flat)  # type: ignore[arg-type]
        repeat = _repeat_of(fields)
        if not _has_rhythm(repeat):
            raise _without_rhythm()
        return {**repeat, "count": _number_of(fields.get("ic")) or 1}

    async def _next(
        self,
        job: StoredJob,
        scheduler_id: str,
        repeat: dict[str, Any],
        count: int,
        now: int,
        end: float | None,
        patience: Patience,
    ) -> None:
        opts = {"attempts": 0, **{key: value for key, value in job.opts.raw.items() if key not in _FROM_SCRIPT}}
        opts["repeat"] = {**repeat, "count": count}
        opts["repeatJobKey"] = scheduler_id
        text = json.dumps(opts, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
        pattern, zone, back = repeat.get("pattern"), repeat.get("tz"), _back(repeat)
        after = max(now - (back or 0), _number_of(id_out(job.id.rpartition(":")[2])) or 0)
        every, priority, spread = _number(repeat.get("every")), job.number(b"priority"), _number(repeat.get("spread"))
        next_ms, from_ms = "", ""
        for _ in range(_TRIES):
            if isinstance(pattern, str):
                after = _next_of(pattern, after, zone if isinstance(zone, str) else None)
                next_ms = str(after)
            args: list[Argument] = [scheduler_id, id_out(job.id), next_ms, _text(every), str(priority), text]
            reply = await self._called([*args, _text(back), _text(end), _text(spread), from_ms], patience)
            assert isinstance(reply, list)
            _, code, _, last = reply
            if code == _DEFINITION:
                raise _without_rhythm()
            if code != _AGAIN:
                return
            assert isinstance(last, bytes)
            after, from_ms = int(last), "" if next_ms else last.decode()
        raise InvalidOption(
            f"the ids of its next slots are taken by other jobs, up to {to_moment(after)}: remove those jobs"
        )

    async def _called(self, args: Sequence[Argument], patience: Patience) -> Reply:
        """A run may be cancelled at any moment; its call in the lane may not, and goes on by itself."""

        async def call() -> Reply:
            async with self._turn:
                return await self._lane.call(_ADVANCE, args, patience)

        calling = asyncio.create_task(call(), name="echomq schedule")
        calling.add_done_callback(_mark_as_seen)
        await asyncio.wait((calling,))
        return calling.result()


async def advance(line: Line, job_id: str, now: int) -> None:
    """Makes the iteration that follows this one, which is not to run, as a worker would that started it now.

    That moment is given in milliseconds of the server.

    Raises:
        InvalidOption: the schedule's pattern, time zone or end cannot be read. BrokenKey: the job's options cannot.
    """
    reply = await line.read("getJob-8", (id_out(job_id),))
    assert isinstance(reply, list)
    started = StoredJob.from_reply(id_out(job_id), [*reply[1], b"processedOn", str(now).encode()])  # type: ignore[misc]
    try:
        decode_opts(started.fields.get(b"opts", b"{}"))
    except ValueError as error:
        raise BrokenKey(
            f"opts of job {job_id!r} of queue {line.keys.queue!r} cannot be read: {error}", code="BROKEN"
        ) from None
    await Schedules(_InLine(line)).advance(started, Patience(line.hub.wait))


def _has_rhythm(repeat: Any) -> TypeGuard[dict[str, Any]]:
    if not isinstance(repeat, dict):
        return False
    pattern = repeat.get("pattern")
    return (_number(repeat.get("every")) or 0) >= 1 if pattern is None else isinstance(pattern, str)


def _without_rhythm() -> InvalidOption:
    return InvalidOption(
        "neither the job's opts.repeat nor the schedule itself has a pattern or an interval that can be read"
    )


def _mark_as_seen(calling: asyncio.Task[Reply]) -> None:
    """Nobody may wait for it by now. Its run was cancelled then, and where it begins again it calls again."""
    if not calling.cancelled():
        calling.exception()


def _too_late(job: StoredJob, repeat: dict[str, Any], now: int) -> float | None:
    """Only a first start can be too late: a further one is the same run, begun in time."""
    grace = _number(repeat.get("grace"))
    if repeat.get("missed") != "skip" or grace is None or job.attempts_started > 1 or job.attempts_made > 0:
        return None
    _, _, slot = job.id.rpartition(":")
    raw = job.opts.raw
    delay = _number(raw.get("delay")) or 0  # with its share of a spread
    if delay > 0:
        due = (_number(raw.get("timestamp")) or 0) + delay
    else:  # it was made when it was due; as part of a spread that may have been up to so much after its slot
        due = float(slot) + (_number(repeat.get("spread")) or 0) if slot.isdecimal() else now
    return (now - due) / 1000 if now - due > grace else None


def _back(repeat: dict[str, Any]) -> float | None:
    """How many milliseconds before now the next slot may be; None: it must be in the future."""
    if repeat.get("missed") != "catch_up":
        return None
    grace = _number(repeat.get("grace"))
    return float(_ALWAYS) if grace is None else max(grace, 0.0)


def _next_of(pattern: str, after_ms: float, zone: str | None) -> int:
    return moment_ms(_cron.successor(pattern, to_moment(after_ms), zone))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _instant_ms(value: Any) -> float | None:
    """A date as Node stores it: milliseconds, or ISO text."""
    if not isinstance(value, str):
        return _number(value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        raise InvalidOption(f"endDate {value!r} has no time zone")
    return float(moment_ms(moment))


# -- by users ----------------------------------------------------------------------------------------------------------


async def upsert(
    line: Line,
    scheduler_id: str,
    rhythm: Every | Cron,
    job: NewJob,
    *,
    start: datetime | None,
    end: datetime | None,
    limit: int | None,
    immediately: bool,
    missed: MissedRuns,
    grace: Duration | None,
    spread: Duration | None,
) -> ScheduleInfo:
    """Makes or changes a schedule. Options have been checked, apart from what depends on the server's time.

    Raises:
        InvalidOption: it would have no run at all.
    """
    name, data, opts = (_bytes(part) for part in job[:3])
    template = decode_json(opts)
    if not template.get("attempts"):
        template.pop("attempts", None)  # as Node's templates have it
    repeat: dict[str, Any] = {}
    if isinstance(rhythm, Every):
        repeat["every"] = duration_ms(rhythm.interval, "interval")
        if rhythm.offset is not None:
            repeat["offset"] = duration_ms(rhythm.offset, "offset")
    else:
        repeat |= {"pattern": rhythm.pattern, "tz": rhythm.tz}
    for option, value in (
        ("limit", limit),
        ("startDate", None if start is None else moment_ms(start)),
        ("endDate", None if end is None else moment_ms(end)),
        ("missed", None if missed == "once" else missed),
        ("grace", None if grace is None else duration_ms(grace, "grace")),
        ("spread", duration_ms(spread, "spread") if spread else None),
    ):
        if value is not None:
            repeat[option] = value
    fields: dict[str, bytes] = {"name": name, **{key: _bytes(str(value)) for key, value in repeat.items()}}
    if data != b"{}":
        fields["data"] = data
    if template:
        fields["opts"] = encode_json(template, "options")
    return await _made(line, scheduler_id, fields, repeat, await _now(line), immediately=immediately)


async def resume(line: Line, scheduler_id: str) -> ScheduleInfo | None:
    """Lets a paused schedule go on, with its next slot from now on. None if there is no such schedule."""
    for _ in range(_TRIES):
        found = await _read(line, [scheduler_id])
        _, flat, _, record = found[0]
        if flat or not record:
            return _info(scheduler_id, found[0])
        fields = _fields_of(record, scheduler_id)
        fields.pop("ic", None)
        try:
            return await _made(line, scheduler_id, fields, _repeat_of(fields), await _now(line), record=record)
        except _ReadAgain:
            continue
    raise StateError(f"schedule {scheduler_id!r} is not resumed: others change it all the time")


async def pause(line: Line, scheduler_id: str) -> bool:
    """Lets no iteration of the schedule start; False if there is no such schedule."""
    _, done = await line.call(_PAUSE, (id_out(scheduler_id),))
    return bool(done)


async def remove(line: Line, scheduler_id: str) -> bool:
    """Removes a schedule; False if there was none."""
    _, done = await line.call(_REMOVE, (id_out(scheduler_id),))
    return bool(done)


async def run_now(line: Line, scheduler_id: str) -> tuple[NewJob, Added] | None:
    """Adds a job of the schedule's template, which the schedule does not notice. None if there is no such schedule."""
    [(_, flat, _, record)] = await _read(line, [scheduler_id])
    fields = _pairs(flat) if flat else _fields_of(record, scheduler_id) if record else None
    if fields is None or "ic" not in fields:
        return None
    options = _template_of(fields, scheduler_id)
    opts = {"attempts": 0, **{key: value for key, value in options.raw.items() if key not in _NOT_OF_A_TEMPLATE}}
    name, data = fields.get("name", id_out(scheduler_id)), fields.get("data", b"{}")
    priority = str(public_options(options).priority)
    new: NewJob = (name, data, encode_json(opts, "options"), "", "0", "", priority, "", "")
    [added] = await line.add((new,))
    return new, added


async def get(line: Line, scheduler_id: str) -> ScheduleInfo | None:
    """A schedule as it is now, or None."""
    [found] = await _read(line, [scheduler_id])
    return _info(scheduler_id, found)


async def every_one(line: Line) -> list[ScheduleInfo]:
    """All schedules, those that run next first."""
    ids: dict[str, None] = {}
    for command, key in (("ZSCAN", "schedulers"), ("HSCAN", "paused_schedulers")):
        cursor: Argument = "0"
        while True:
            reply = await line.ask(command, line.keys.resolve(key), cursor, "COUNT", "500")
            assert isinstance(reply, list)
            cursor, pairs = reply  # type: ignore[assignment]
            ids |= {one.decode("utf-8", "surrogateescape"): None for one in pairs[::2]}  # type: ignore[union-attr, index]
            if cursor == b"0":
                break
    names = list(ids)
    infos: list[ScheduleInfo] = []
    for start in range(0, len(names), _CHUNK):
        some = names[start : start + _CHUNK]
        infos.extend(await _readable(line, some))
    return sorted(infos, key=lambda one: (one.next_run is None, one.next_run or to_moment(0), one.id))


async def _readable(line: Line, ids: Sequence[str]) -> list[ScheduleInfo]:
    """Those schedules; one that cannot be read is left out, and said, so that it hides no other."""
    try:
        found = [_info(one, its) for one, its in zip(ids, await _read(line, ids), strict=True)]
    except BrokenKey as error:
        if len(ids) > 1:
            return [info for one in ids for info in await _readable(line, [one])]
        _log.warning("schedule %r is not listed: %s; mend it, or remove it", ids[0], error)
        return []
    return [one for one in found if one is not None]


class _ReadAgain(Exception):
    """A schedule is not as it was read any more."""


async def _made(
    line: Line,
    scheduler_id: str,
    fields: dict[str, bytes],
    repeat: dict[str, Any],
    now: int,
    *,
    immediately: bool = False,
    record: bytes = b"",
) -> ScheduleInfo:
    pattern, zone, back = repeat.get("pattern"), repeat.get("tz"), _back(repeat)
    priority = public_options(_template_of(fields, scheduler_id)).priority
    earliest = (_number(repeat.get("startDate")) or 0) - 1  # a start that is itself a slot is the first
    after, next_ms = float(now), ""
    flat = [part for pair in fields.items() for part in pair]
    for _ in range(_TRIES):
        if isinstance(pattern, str):
            after = max(after, earliest)
            next_ms = str(_next_of(pattern, after, zone))
        reply = await line.call(
            _UPSERT,
            [
                *(
                    id_out(scheduler_id),
                    next_ms,
                    _text(after) if pattern else "",
                    "1" if immediately else "",
                    _text(back),
                ),
                *(str(priority), encode_json(repeat, "repeat"), record, *flat),
            ],
        )
        _, code, slot, count, offset = reply
        if code == _CHANGED:
            raise _ReadAgain
        if code == _NONE_AT_ALL:
            end = _number(repeat.get("endDate"))
            if end is not None and end <= now:
                raise InvalidOption(
                    f"end={to_moment(end)}: is in the past, and there is no schedule {scheduler_id!r} that it could have ended: "
                    "give a later end, or leave this upsert out"
                )
            raise InvalidOption(
                f"schedule {scheduler_id!r} names no time between now (or its start) and its end: give a later end"
            )
        if code != _AGAIN:
            now_fields = {**fields, "ic": count, **({"offset": offset} if offset else {})}
            return _described(scheduler_id, now_fields, slot if code == _GOES_ON else b"", paused=code == _PAUSED)
        if pattern:
            after = max(float(slot), now - (back or 0))
        else:
            next_ms = slot.decode()
    raise StateError(
        f"schedule {scheduler_id!r} is not changed: the ids of its next slots are taken by other jobs (repeat:{scheduler_id}:…), "
        f"up to {to_moment(int(slot))}; remove those jobs"
    )


def has_come_to_its_end(slot: float, flat: Sequence[Any]) -> bool:
    """Whether a schedule, by its hash, makes no run after the one of this slot."""
    fields = _pairs(flat)
    repeat = _repeat_of(fields)
    limit, end, every = (_number(repeat.get(name)) for name in ("limit", "endDate", "every"))
    if limit is not None and (_number_of(fields.get("ic")) or 1) >= limit:
        return True
    if end is None:
        return False
    following = slot + every if every else _next_of(repeat.get("pattern", ""), slot, repeat.get("tz"))
    return following > end


async def _now(line: Line) -> int:
    reply = await line.ask("TIME")
    assert isinstance(reply, list)
    seconds, micros = reply
    return int(seconds) * 1000 + int(micros) // 1000  # type: ignore[arg-type]


_Found = tuple[bytes, list[bytes], bytes, bytes]


async def _read(line: Line, ids: Sequence[str]) -> list[_Found]:
    reply = await line.read(_GET, [id_out(one) for one in ids])
    assert isinstance(reply, list)
    return [tuple(one) for one in reply]  # type: ignore[arg-type, misc]


def _info(scheduler_id: str, found: _Found) -> ScheduleInfo | None:
    slot, flat, waits, record = found
    fields = _pairs(flat)
    if "ic" in fields:
        return _described(scheduler_id, fields, slot if waits else b"", paused=False)
    if record:
        return _described(scheduler_id, _fields_of(record, scheduler_id), b"", paused=True)
    return None  # or a repeatable job of BullMQ 5 (protocol 13.2)


def _pairs(flat: Sequence[bytes]) -> dict[str, bytes]:
    parts = iter(flat)
    return {name.decode("utf-8", "replace"): value for name, value in zip(parts, parts, strict=True)}


def _repeat_of(fields: dict[str, bytes]) -> dict[str, Any]:
    """What ``opts.repeat`` of a schedule's iterations says, without the count."""
    repeat: dict[str, Any] = {}
    for key in ("pattern", "tz", "missed"):
        if key in fields:
            repeat[key] = fields[key].decode("utf-8", "replace")
    for key in ("every", "offset", "limit", "startDate", "endDate", "grace", "spread"):
        if (number := _number_of(fields.get(key))) is not None:
            repeat[key] = number
    if "pattern" in repeat:
        repeat.pop("offset", None)
    return repeat


def _fields_of(record: bytes, scheduler_id: str) -> dict[str, bytes]:
    """The fields of a paused schedule."""
    try:
        fields = decode_json(record)["fields"]
        return {name: value.encode("utf-8", "surrogateescape") for name, value in fields.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BrokenKey(
            f"the record of the paused schedule {scheduler_id!r} cannot be read: {error}", code="BROKEN"
        ) from None


def _template_of(fields: dict[str, bytes], scheduler_id: str) -> RunOptions:
    """The options of a schedule's jobs, to make one."""
    try:
        return decode_opts(fields.get("opts", b"{}"))
    except ValueError as error:
        raise BrokenKey(
            f"the opts of the schedule {scheduler_id!r} cannot be read: {error}; upsert it anew", code="BROKEN"
        ) from None


def _described(scheduler_id: str, fields: dict[str, bytes], slot: bytes, *, paused: bool) -> ScheduleInfo:
    numbers = {name: _number_of(fields.get(name)) for name in _NUMBERS}
    texts = {name: _decoded(fields.get(name)) for name in ("name", "pattern", "tz", "missed")}
    start, end = numbers["startDate"], numbers["endDate"]
    missed: MissedRuns = "once"
    if texts["missed"] == "skip" or texts["missed"] == "catch_up":
        missed = "skip" if texts["missed"] == "skip" else "catch_up"
    return ScheduleInfo(
        id=scheduler_id,
        name=texts["name"] or scheduler_id,
        data=_data_of(fields.get("data", b"{}")),
        options=public_options(_options_of(fields.get("opts", b"{}"))),
        next_run=to_moment(int(slot)) if slot else None,
        iteration_count=numbers["ic"] or 0,
        paused=paused,
        every=_seconds(numbers["every"]),
        offset=_seconds(numbers["offset"]) if numbers["every"] else None,
        pattern=texts["pattern"],
        tz=texts["tz"],
        start=None if start is None else to_moment(start),
        end=None if end is None else to_moment(end),
        limit=numbers["limit"],
        missed=missed,
        grace=_seconds(numbers["grace"]),
        spread=_seconds(numbers["spread"]) or 0.0,
    )


_NUMBERS: Final = ("ic", "every", "offset", "limit", "startDate", "endDate", "grace", "spread")
_LATEST: Final = 253_402_300_799_000  # a moment, in milliseconds, that Python can still write


def _number_of(text: bytes | None) -> int | None:
    try:
        number = float(text or b"nan")
    except ValueError:
        return None
    return int(number) if 0 <= number <= _LATEST else None


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _decoded(text: bytes | None) -> str | None:
    return None if text is None else text.decode("utf-8", "replace")


def _data_of(text: bytes) -> Any:
    try:
        return decode_json(text)
    except ValueError:  # somebody's hand: show what is there
        return text.decode("utf-8", "replace")


def _options_of(text: bytes) -> RunOptions:
    try:
        return decode_own_opts(text)
    except ValueError:
        return RunOptions(raw={})


def _bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text
