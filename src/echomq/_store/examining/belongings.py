"""What belongs to jobs: their families, the ids that keep others out, locks, logs."""

from __future__ import annotations

from functools import partial

from echomq._redis.wire import Argument
from echomq._store import names
from echomq._store.codec import decode_id
from echomq._store.examining.ward import LOOK, Ward, seconds


async def parents(ward: Ward) -> None:
    """Parents that wait in vain."""
    async for ids in ward.set_pages("waiting-children"):
        await ward.each(ids, partial(_parent, ward))


async def _parent(ward: Ward, parent_id: bytes) -> None:
    key, name = ward.base + parent_id + b":dependencies", decode_id(parent_id)
    cursor: Argument = b"0"
    pending = False
    while True:
        reply = await ward.line.ask("SSCAN", key, cursor, "COUNT", "500")
        assert isinstance(reply, list)
        cursor, children = reply  # type: ignore[assignment]
        pending = pending or bool(children)
        for child in children:  # type: ignore[union-attr]
            assert isinstance(child, bytes)
            code = await ward.line.read("releaseParent-1", (parent_id, child, ""))
            waits = f"parent {name!r} waits for its child {decode_id(child)}"
            if code == 2:
                ward.tell("missing-child", parent_id, f"{waits}, which is gone", child)
            elif code in (3, 4):
                ended = "completed" if code == 3 else "failed"
                ward.tell("ended-child", parent_id, f"{waits}, which has {ended} and did not tell it", child)
        if cursor == b"0":
            break
    if not pending and await ward.line.read("releaseParent-1", (parent_id, "", "")) == 1:
        ward.tell("stuck-parent", parent_id, f"parent {name!r} waits for children, and all of them have ended")


async def deduplication(ward: Ward) -> None:
    """Ids that keep others out for ever, and what was kept to run next."""
    await ward.each(ward.met.held | ward.met.kept, partial(_one_deduplication, ward))


async def _one_deduplication(ward: Ward, deid: bytes) -> None:
    holders = ward.met.holders.get(deid, [])[:LOOK]
    reply = await ward.line.read("freeDeduplication-11", (deid, "", *holders))
    assert isinstance(reply, list)
    dead, in_vain, owner, _ = reply
    name = decode_id(deid)
    if dead:
        assert isinstance(owner, bytes)
        text = f"the deduplication id {name!r} is held for ever by job {decode_id(owner)!r}, which has ended or is gone"
        ward.tell("dead-deduplication-id", deid, text)
    if in_vain:
        text = f"a job that was kept to run after the one with the deduplication id {name!r} waits for none"
        ward.tell("orphaned-next-job", deid, text)


async def parts(ward: Ward) -> None:
    """Locks, logs and children: of jobs that are gone, and longer than they may be."""
    await ward.each(ward.met.parts, partial(_part, ward))


async def _part(ward: Ward, both: tuple[bytes, bytes]) -> None:
    job_id, part = both
    name = decode_id(job_id)
    if part == b"lock":
        reply = await ward.line.read("dropLock-1", (job_id, ""))
        assert isinstance(reply, list)
        if reply[0]:
            lasts = "for ever" if reply[1] == -1 else f"for another {seconds(reply[1])} s"
            text = f"job {name!r} is locked {lasts}, and is not active"
            ward.tell("lock-without-run", job_id, text)
        return
    if await ward.line.read("dropPart-1", (job_id, part, "")):
        if not await names.foreign(ward.line.ask, ward.keys, [job_id]):
            key = f"{ward.keys.job(name)}:{decode_id(part)}"
            ward.tell("orphaned-part", job_id, f"{key} belongs to a job that is gone", part)
    elif part == b"logs" and (surplus := await ward.line.read("holdLogs-1", (job_id, ""))):
        text = f"the log of job {name!r} has {surplus!r} lines more than its options let it keep"
        ward.tell("logs-too-long", job_id, text)
