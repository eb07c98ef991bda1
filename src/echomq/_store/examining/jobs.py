"""Where jobs stand: in no place, in two, twice in one; ids without a job, and what is none."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

from echomq._redis.wire import Argument
from echomq._store import heal, names
from echomq._store.codec import decode_id
from echomq._store.examining.ward import LISTS, LOOK, PAGE, SETS, Ward
from echomq.errors import ServerError

_LOST: Final = 500


def _several(places: Sequence[str]) -> str:
    """wait, delayed (twice): each place once, with how often."""
    return ", ".join(name if times == 1 else f"{name} ({times} times)" for name, times in Counter(places).items())


async def places(ward: Ward) -> None:
    """Where ids stand that have no job, or stand in two places, or twice in one."""
    for place in SETS:
        await ward.careful(f"the set {place}", _set(ward, place))
    standing: set[bytes] = set()  # in lists
    for place in LISTS:
        await ward.careful(f"the list {place}", _list(ward, place, standing))
    suspects, ward.suspects = ward.suspects, set()
    hints = await positions(ward, suspects)
    await ward.each(suspects, lambda job_id: _one_place(ward, job_id, hints.get(job_id, [])))


async def _set(ward: Ward, place: str) -> None:
    async for ids in ward.set_pages(place):
        await _without_hash(ward, ids)


async def _without_hash(ward: Ward, ids: Sequence[bytes]) -> None:
    """Suspects what stands somewhere without a job."""
    if not ids or await ward.line.ask("EXISTS", *(ward.base + one for one in ids)) == len(ids):
        return
    for start in range(0, len(ids), LOOK):
        for job_id, kind, *_ in await ward.states(ids[start : start + LOOK]):
            if kind == b"none":
                ward.suspects.add(job_id)


async def _list(ward: Ward, place: str, standing: set[bytes]) -> None:
    nowhere = ward.met.nowhere
    async for _, _, ids in ward.list_pages(place):
        odd = []
        for job_id in ids:
            if job_id in standing:
                ward.suspects.add(job_id)
            elif job_id in nowhere:
                nowhere.remove(job_id)
            elif not job_id.startswith(b"0:"):  # what BullMQ 4 marked its lists with
                odd.append(job_id)
            standing.add(job_id)
        for start in range(0, len(odd), LOOK):
            for job_id, kind, places, *_ in await ward.states(odd[start : start + LOOK]):
                if kind == b"other":
                    await _wrong_type(ward, job_id, place)
                elif kind == b"none" or places:
                    ward.suspects.add(job_id)


async def _wrong_type(ward: Ward, job_id: bytes, place: str) -> None:
    key = ward.keys.job(decode_id(job_id))
    kind = await ward.line.ask("TYPE", key)
    if isinstance(kind, bytes) and kind not in (b"hash", b"none"):
        ward.tell("job-of-wrong-type", job_id, f"{key}, a job in {place}, is a {kind.decode()}, and must be a hash")


async def positions(ward: Ward, suspects: set[bytes]) -> dict[bytes, list[Argument]]:
    """Where suspects stand in lists that are too long for a script to search: list, index from the head, from the tail."""
    found: dict[bytes, list[Argument]] = defaultdict(list)
    for place in LISTS if suspects else ():
        with contextlib.suppress(ServerError):  # of a wrong type: the script will say so
            length = await ward.line.ask("LLEN", ward.keys.key(place))
            if isinstance(length, int) and length > PAGE:
                async for start, length, ids in ward.list_pages(place):
                    for at, job_id in enumerate(ids, start=start):
                        if job_id in suspects:
                            found[job_id] += (place, str(at), str(length - at))
    return found


async def _one_place(ward: Ward, job_id: bytes, hints: Sequence[Argument]) -> None:
    reply = await ward.line.read("keepOnePlace-11", (job_id, "", *hints))
    assert isinstance(reply, list)
    kind, _, *found = reply
    places = [decode_id(one) for one in found if isinstance(one, bytes)]
    if kind == b"none" and places:
        text = f"{decode_id(job_id)!r} stands in {_several(places)}, and there is no such job"
        ward.tell("ghost-id", job_id, text, ", ".join(places))
    elif kind == b"hash" and len(set(places)) > 1:
        text = f"job {decode_id(job_id)!r} stands in {_several(places)}, and must stand in one"
        ward.tell("job-in-two-states", job_id, text, ", ".join(places))
    elif kind == b"hash" and len(places) > 1:
        text = f"job {decode_id(job_id)!r} stands {len(places)} times in {places[0]}"
        ward.tell("id-twice-in-list", job_id, text, places[0])


async def lost(ward: Ward) -> None:
    """Jobs that stood in no set and in no list: most have only moved."""
    moved = ward.met.nowhere | ward.met.partial
    ordered = list(moved - await names.foreign(ward.line.ask, ward.keys, moved))
    still: list[bytes] = []
    for start in range(0, len(ordered), LOOK):
        looked = await ward.states(ordered[start : start + LOOK])
        still += [one for one, kind, places, *_ in looked if kind in (b"hash", b"part") and not places]
    way = heal.Way.of_line(ward.line)
    for start in range(0, len(still), _LOST):
        for job_id, mark in await heal.lost_at_once(way, still[start : start + _LOST]):
            name = decode_id(job_id)
            if mark:
                ward.tell("job-in-no-state", job_id, f"job {name!r} stands in no state: no worker would come upon it")
            elif not job_id.startswith(b"repeat:"):
                lacks = "lacks its name, data, options or time, and stands in no state"
                ward.tell("partial-job", job_id, f"the hash {ward.keys.job(name)} {lacks}")


async def options(ward: Ward) -> None:
    """Options that are no JSON object."""

    async def look(job_id: bytes) -> None:
        if await ward.line.read("mendOptions-1", (job_id, "")):
            text = f"the options of job {decode_id(job_id)!r} are no JSON object: it fails when it is run"
            ward.tell("unreadable-options", job_id, text)

    await ward.each(ward.optionless, look)
