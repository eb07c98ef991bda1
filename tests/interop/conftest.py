"""Peers: Node processes that live for the session, and the two places where queues are shared with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from echomq import Connection, Queue, Worker
from tests.interop.handlers import Runs
from tests.support.node_peer import VERSIONS, NodePeer, NodeQueue, Version
from tests.support.server import Server

_numbers = count(1)


@pytest.fixture(scope="session")
def session_node(shared_server: Callable[[Any], Server]) -> Iterator[Callable[[Version, Server], NodePeer]]:
    """Gives the session's Node process of a version, a new one after it was killed."""
    with ExitStack() as stack:
        peers: dict[tuple[Version, str], NodePeer] = {}

        def get(version: Version, server: Server) -> NodePeer:
            key = (version, server.url)
            if key not in peers or not peers[key].is_running:
                peers[key] = stack.enter_context(NodePeer(version, server.socket_path))
            return peers[key]

        yield get


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> Version:
    """Which BullMQ."""
    chosen: Version = request.param
    return chosen


@pytest.fixture
async def node(
    version: Version, server: Server, session_node: Callable[[Version, Server], NodePeer]
) -> AsyncIterator[NodePeer]:
    """Node, with nothing open, on the session's empty server."""
    peer = session_node(version, server)
    peer.news.clear()
    yield peer
    if peer.is_running:
        await peer("reset")


@dataclass(frozen=True)
class Place:
    """Where both sides keep a queue: a prefix, and whether its name stands in braces."""

    prefix: str
    braces: bool

    def node_name(self, queue: str) -> str:
        """What Node calls our queue."""
        return f"{{{queue}}}" if self.braces else queue


BULL = Place("bull", False)
"""BullMQ's own layout, as existing Node programs have it."""
EMQ = Place("emq", True)
"""Our default layout."""


@pytest.fixture(params=[BULL, EMQ], ids=["bull", "emq"])
def place(request: pytest.FixtureRequest) -> Place:
    """Both layouts."""
    chosen: Place = request.param
    return chosen


class Pair:
    """One queue, seen from both sides.

    Attributes:
        ours: our ``Queue``.
        theirs: Node's.
        runs: the handlers of our workers, and what they saw.
    """

    def __init__(self, name: str, place: Place, node: NodePeer, connection: Connection) -> None:
        self.name = name
        self.place = place
        self.node = node
        self.connection = connection
        self.ours = Queue(name, connection=connection, prefix=place.prefix)
        self.theirs = NodeQueue(node, place.node_name(name), place.prefix)
        self.runs = Runs()

    @asynccontextmanager
    async def worker(self, **options: Any) -> AsyncIterator[Worker]:
        """A worker of ours with the handlers of ``Runs``, ready, and stopped at the end of the block."""
        given = {"lock_duration": 5, "stalled_interval": 1, "shutdown_timeout": 2, **options}
        worker = Worker(self.ours, self.runs, **given)
        async with worker:
            await worker.ready()
            yield worker

    def key(self, suffix: str) -> str:
        """A key of the queue."""
        return f"{self.place.prefix}:{self.theirs.name}:{suffix}"


@pytest.fixture
async def make_pair(node: NodePeer, server: Server) -> AsyncIterator[Callable[..., Pair]]:
    """Makes queues that both sides see."""
    pairs: list[Pair] = []
    async with Connection(server.url) as connection:

        def make(name: str | None = None, place: Place = BULL) -> Pair:
            pairs.append(Pair(name or f"q{next(_numbers)}", place, node, connection))
            return pairs[-1]

        yield make
        await asyncio.gather(*(pair.ours.close() for pair in pairs))


@pytest.fixture
def pair(make_pair: Callable[..., Pair], place: Place) -> Pair:
    """A queue that both sides see, in both layouts."""
    return make_pair(place=place)


@pytest.fixture
def bull(make_pair: Callable[..., Pair]) -> Pair:
    """A queue that both sides see, in BullMQ's layout."""
    return make_pair()


@pytest.fixture
def doomed(version: Version, server: Server) -> Iterator[NodePeer]:
    """Another Node process, for the test to kill."""
    with NodePeer(version, server.socket_path) as peer:
        yield peer
