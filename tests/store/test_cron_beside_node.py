"""What a scheduler's pattern names next: by Node (the score that its upsert writes, its clock held still) and by us."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from echomq._cron import successor
from tests.store.node_peer import NodePeer, Version
from tests.support.cron import EXPRESSIONS
from tests.support.server import Server

NextOf = Callable[[str, datetime, str], datetime]

ZONES = ["UTC", "Asia/Kathmandu", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Chatham"]
DAY = timedelta(days=1)


@pytest.fixture(scope="module", params=["bullmq6", "bullmq5"])
def peer(request: pytest.FixtureRequest) -> Iterator[NodePeer]:
    version: Version = request.param
    with NodePeer(version) as node:
        yield node


@pytest.fixture
def by_node(peer: NodePeer, server: Server) -> Iterator[NextOf]:
    peer("open", path=str(server.socket_path), prefix="bull", queue="q")
    with server.client() as client:

        def next_of(pattern: str, after: datetime, zone: str) -> datetime:
            peer("clock", at=int(after.timestamp() * 1000))
            client.flushall()
            peer("upsert", id="s", repeat={"pattern": pattern, "tz": zone}, template={"name": "tick"})
            due = client.zscore("bull:q:repeat", "s")
            assert due is not None
            return datetime.fromtimestamp(due / 1000, UTC)

        yield next_of
    peer("close")


@pytest.mark.parametrize("zone", ZONES)
def test_the_same_where_no_clock_changes(by_node: NextOf, zone: str) -> None:
    assert len(EXPRESSIONS) == 40
    compared = 0
    for expression in EXPRESSIONS:
        for _ in range(4):
            after = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=random.randrange(365 * 86_400))
            ours = successor(expression.pattern, after, zone)
            if changes_between(after - DAY, after + DAY, zone) or changes_between(ours - DAY, ours + DAY, zone):
                continue
            assert by_node(expression.pattern, after, zone) == ours, f"{expression} after {after}"
            compared += 1
    assert compared > 120


def changes_between(start: datetime, end: datetime, zone: str) -> bool:
    clock = ZoneInfo(zone)
    return start.astimezone(clock).utcoffset() != end.astimezone(clock).utcoffset()


@pytest.mark.parametrize(
    ("pattern", "zone", "after", "ours", "bullmq5", "bullmq6"),
    [
        # A skipped time of day: later by the length of the gap, or not on that date.
        ("30 2 * * *", "Europe/Berlin", "03-28T22:00", "03-29T01:00", "03-29T01:30", "03-29T01:30"),
        ("0 0 * * *", "America/Havana", "03-07T12:00", "03-08T05:00", "03-09T04:00", "03-09T04:00"),
        ("30 0 * * *", "Asia/Beirut", "03-28T12:00", "03-28T22:00", "03-29T21:30", "03-29T21:30"),
        ("30 23 * * *", "America/Nuuk", "03-28T02:30", "03-29T01:00", "03-30T00:30", "03-30T00:30"),
        ("30 1 * * *", "Antarctica/Troll", "03-28T22:00", "03-29T01:00", "03-29T23:30", "03-29T01:30"),
        ("30 1-3 * * *", "Europe/Berlin", "03-29T00:30", "03-29T01:00", "03-29T01:30", "03-29T01:30"),
        # A skipped time of a repeating pattern.
        ("0 */2 * * *", "Europe/Berlin", "03-28T23:00", "03-29T02:00", "03-29T01:00", "03-29T01:00"),
        ("*/15 2 * * *", "Europe/Berlin", "03-28T22:00", "03-30T00:00", "03-29T01:00", "03-29T01:00"),
        # A repeated time, after it has run once.
        ("0 */2 * * *", "Europe/Berlin", "10-25T00:00", "10-25T01:00", "10-25T03:00", "10-25T03:00"),
        ("*/15 2 * * *", "Europe/Berlin", "10-25T00:45", "10-25T01:00", "10-26T01:00", "10-26T01:00"),
        ("30 2 * * *", "Antarctica/Troll", "10-25T00:30", "10-26T02:30", "10-25T02:30", "10-25T02:30"),
        ("45 1 * * *", "Australia/Lord_Howe", "04-04T14:45", "04-05T15:15", "04-04T15:15", "04-05T15:15"),
        ("15 3 * * *", "Pacific/Chatham", "04-04T13:30", "04-05T14:30", "04-04T14:30", "04-05T14:30"),
        ("0 0 * * *", "America/Havana", "10-31T12:00", "11-01T04:00", "11-01T04:00", "11-01T05:00"),
        # Hourly, where clocks move by half an hour.
        ("30 * * * *", "Australia/Lord_Howe", "10-03T15:00", "10-03T15:30", "10-03T15:30", "10-03T16:30"),
        ("45 * * * *", "Australia/Lord_Howe", "04-04T14:45", "04-04T15:15", "04-04T15:15", "04-04T16:15"),
    ],
)  # fmt: skip
def test_differences_where_clocks_change(
    by_node: NextOf, peer: NodePeer, pattern: str, zone: str, after: str, ours: str, bullmq5: str, bullmq6: str
) -> None:
    def moment(text: str) -> datetime:
        return datetime.fromisoformat(f"2026-{text}:00+00:00")

    assert successor(pattern, moment(after), zone) == moment(ours)
    assert by_node(pattern, moment(after), zone) == moment({"bullmq5": bullmq5, "bullmq6": bullmq6}[peer.version])
