"""What is made of an entry of the event log: every kind of protocol 9, and whatever else may stand there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq import Queue, events
from echomq._store.codec import decode_event
from echomq.errors import InvalidOption
from echomq.event_types import KINDS, RESERVED, Event

ID = b"1764400000123-4"
AT = datetime(2025, 11, 29, 7, 6, 40, 123_000, tzinfo=UTC)


def decoded(*fields: str | bytes) -> Event:
    return decode_event("q", ID, [field if isinstance(field, bytes) else field.encode() for field in fields])


def event(kind: type[Event], **attributes: Any) -> Event:
    return kind(id=ID.decode(), queue="q", at=AT, **attributes)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("added jobId 7 name paint", event(events.Added, job_id="7", name="paint")),
        ("waiting jobId 7", event(events.Waiting, job_id="7")),
        ("waiting jobId 7 prev delayed", event(events.Waiting, job_id="7", previous="delayed")),
        ("waiting jobId 7 prev active", event(events.Waiting, job_id="7", previous="active")),
        ("waiting jobId 7 prev failed", event(events.Waiting, job_id="7", previous="failed")),
        ("waiting jobId 7 prev waiting-children", event(events.Waiting, job_id="7", previous="waiting_children")),
        ("delayed jobId 7 delay 1764400000123", event(events.Delayed, job_id="7", until=AT)),
        ("waiting-children jobId 7", event(events.WaitingChildren, job_id="7")),
        ("waiting-children jobId 7 prev active", event(events.WaitingChildren, job_id="7", previous="active")),
        ("active jobId 7 prev waiting", event(events.Active, job_id="7", previous="waiting")),
        ('progress jobId 7 data {"done":3}', event(events.Progress, job_id="7", progress={"done": 3})),
        (
            "progress jobId 7 data null dataBytes 70000",
            event(events.Progress, job_id="7", progress=None, left_out=70_000),
        ),
        (
            "completed jobId 7 returnvalue 5 prev active",
            event(events.Completed, job_id="7", return_value=5, previous="active"),
        ),
        (
            "completed jobId 7 returnvalue null prev active resultBytes 70000",
            event(events.Completed, job_id="7", return_value=None, left_out=70_000, previous="active"),
        ),
        (
            "completed jobId 7 returnvalue null prev active resultError why",
            event(events.Completed, job_id="7", return_value=None, error="why", previous="active"),
        ),
        (
            "failed jobId 7 failedReason bad prev active",
            event(events.Failed, job_id="7", reason="bad", previous="active"),
        ),
        ("retries-exhausted jobId 7 attemptsMade 3", event(events.RetriesExhausted, job_id="7", attempts_made=3)),
        ("stalled jobId 7", event(events.Stalled, job_id="7")),
        ("removed jobId 7 prev wait", event(events.Removed, job_id="7", previous="waiting")),
        ("removed jobId 7 prev unknown", event(events.Removed, job_id="7")),
        ("duplicated jobId 7", event(events.Duplicated, job_id="7")),
        (
            "deduplicated jobId 7 deduplicationId D deduplicatedJobId 8",
            event(events.Deduplicated, job_id="7", deduplication_id="D", deduplicated_job_id="8"),
        ),
        ("debounced jobId 7 debounceId D", event(events.Debounced, job_id="7", debounce_id="D")),
        ("cleaned count 12", event(events.Cleaned, count=12)),
        ("paused", event(events.Paused)),
        ("resumed", event(events.Resumed)),
        ("drained", event(events.Drained)),
        ("skipped jobId 7 late 1500", event(events.Skipped, job_id="7", late=1.5)),
        ("expired jobId 7", event(events.Expired, job_id="7")),
        ("course-closed course redis", event(events.Custom, name="course-closed", fields={"course": "redis"})),
    ],
)
def test_every_kind(fields: str, expected: Event) -> None:
    assert decoded("event", *fields.split(" ")) == expected


def test_the_kinds_of_the_protocol_are_all_there_and_cannot_be_published() -> None:
    protocol = (
        "added waiting delayed waiting-children active progress completed failed retries-exhausted stalled removed duplicated "
        "deduplicated debounced cleaned paused resumed drained"
    )
    assert set(KINDS) == {*protocol.split(), "skipped", "expired", "cancelled"}
    assert {*KINDS, "error"} == RESERVED
    assert {kind.__name__ for kind in KINDS.values()} < set(events.__all__)


@pytest.mark.parametrize("name", sorted(RESERVED))
async def test_a_name_of_the_protocol_is_refused(name: str) -> None:
    async with Queue("q", connection="redis://127.0.0.1:1") as queue:
        with pytest.raises(InvalidOption, match=f"event '{name}'"):
            await queue.publish(name)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ((), "its first field is not 'event'"),
        (("x", "y"), "its first field is not 'event'"),
        (("event",), "its first field is not 'event'"),
        (("event", "completed", "odd"), "its first field is not 'event'"),
        (("event", "completed", "jobId", "7"), "completed without returnvalue"),
        (("event", "completed", "returnvalue", "1"), "completed without jobId"),
        (("event", "completed", "jobId", "7", "returnvalue", "notjson"), "completed: "),
        (("event", "completed", "jobId", "7", "returnvalue", "[" * 100_000), "completed: "),
        (("event", "delayed", "jobId", "7", "delay", "soon"), "delayed: "),
        (("event", "delayed", "jobId", "7", "delay", "1e300"), "delayed: "),
        (("event", "delayed", "jobId", "7", "delay", "nan"), "delayed: "),
        (("event", "cleaned", "count", "many"), "cleaned: "),
    ],
)
def test_what_cannot_be_read_says_so(fields: tuple[str, ...], reason: str) -> None:
    found = decoded(*fields)
    assert isinstance(found, events.Unreadable)
    assert found.reason.startswith(reason)
    assert found.fields == fields
    assert found.id == ID.decode()


@given(
    st.lists(st.one_of(st.binary(max_size=20), st.sampled_from([name.encode() for name in (*KINDS, "event", "jobId")])))
)
def test_whatever_stands_there_something_is_made_of_it(fields: list[bytes]) -> None:
    for entry in (fields, [b"event", *fields]):
        assert isinstance(decode_event("q", ID, entry), Event)


def test_an_id_past_every_date() -> None:
    assert decode_event("q", b"18446744073709551615-0", [b"event", b"paused"]).at == datetime.max.replace(tzinfo=UTC)
