"""Every kind of event that our scripts write, as ``QueueEvents`` hands it out: none is unreadable, and each says what it must."""

from __future__ import annotations

from typing import Any

from echomq._store.codec import decode_event
from echomq.event_types import KINDS, Event
from tests.store.scripts import Queue, completed, failed, retried
from tests.store.test_vectors_telling import tell, told

ELSEWHERE = {"debounced", "waiting-children"}
"""Written by other programs alone, so far."""


def events_of(queue: Queue) -> list[Event]:
    entries: list[Any] = queue.client.execute_command("XRANGE", queue.base + "events", "-", "+")
    return [decode_event("q", entry_id, fields) for entry_id, fields in entries]


def attributes(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__ if name not in ("id", "queue", "at")}


def test_each_kind_that_we_write(queue: Queue) -> None:
    first = queue.add("paint", '{"a":1}')
    queue.add(job_id="own")
    queue.add(job_id="own")  # duplicated
    unique = queue.add(de={"id": "D"})
    queue.add(de={"id": "D"})  # deduplicated
    late = queue.add(delay=60_000)
    tell(queue, told("progress", first, '{"done":1}'))
    queue.pause()
    queue.resume()
    queue.fetch(3)
    token = queue.token
    said = ["skipped", "late", "1500"]
    queue.finish(
        completed(first, token, '{"seat":17}'),
        failed("own", token, "bad", attempts=1),
        completed(unique, token, said=said),
    )
    queue.remove(late)
    lost = queue.add()
    queue.fetch(1, lock=1)
    queue.sweep()
    queue.client.execute_command("DEL", f"{queue.base}{lost}:lock")
    queue.client.execute_command("DEL", f"{queue.base}stalled-check")
    queue.sweep()
    queue.fetch()
    queue.finish(retried(lost, queue.token, "again", 1_000))
    queue.client.execute_command("DEL", f"{queue.base}delayed")
    expired = queue.add()
    queue.fetch()
    outcome = failed(expired, queue.token, "late")
    assert isinstance(outcome.more, dict)
    outcome.more["said"] = ["expired"]
    queue.finish(outcome)
    given_up = queue.add()
    queue.run("cancelJob-16", given_up, "the learner has left", "")
    queue.run("cleanJobs-12", "completed", 0, "", 0, "")
    found = events_of(queue)
    assert {event.kind for event in found} == set(KINDS) - ELSEWHERE
    by_kind = {event.kind: attributes(event) for event in reversed(found)}
    assert by_kind["added"] == {"job_id": first, "name": "paint"}
    assert by_kind["progress"] == {"job_id": first, "progress": {"done": 1}, "left_out": None}
    assert by_kind["completed"] == {
        "job_id": first, "return_value": {"seat": 17}, "left_out": None, "error": None, "previous": "active",
    }  # fmt: skip
    assert by_kind["failed"] == {"job_id": "own", "reason": "bad", "previous": "active"}
    assert by_kind["retries-exhausted"] == {"job_id": "own", "attempts_made": 1}
    assert by_kind["deduplicated"]["deduplication_id"] == "D"
    assert by_kind["skipped"] == {"job_id": unique, "late": 1.5}
    assert by_kind["removed"] == {"job_id": late, "previous": "delayed"}
    assert by_kind["stalled"] == {"job_id": lost}
    assert by_kind["cancelled"] == {"job_id": given_up, "reason": "the learner has left"}
    assert by_kind["expired"] == {"job_id": expired}
