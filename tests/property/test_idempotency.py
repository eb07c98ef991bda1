"""Deliveries, duplicates, failures and crashes in any order: never two effects for a key, and none lost."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from echomq._redis.client import Link
from echomq._redis.connect import Settings
from echomq._store.effects import Claim, claim_effect, effect_key, finish_effect, release_effect
from echomq.idempotency import Effect, SQLBlock, SQLOnce
from tests.support.databases import postgresql
from tests.support.deliveries import BOOK
from tests.support.server import Server

T = TypeVar("T")

KEYS = st.sampled_from(["a", "A", "b"])
SLOTS = st.integers(0, 2)
EXAMPLES = settings(max_examples=40, stateful_step_count=40, deadline=None)

once = SQLOnce()


class Delivery:
    """One delivery on its way: its connection, its block, and how far it has come."""

    def __init__(self, connection: Any, key: str) -> None:
        self.connection = connection
        self.key = key
        self.block: SQLBlock = once(connection, key)
        self.effect: Effect = self.block.__enter__()
        self.inside = True
        self.applied = False


class Transactions(RuleBasedStateMachine):
    """Three workers against a pure model: the set of keys whose effect has been committed."""

    def __init__(self, connect: Callable[[], Any], busy: type[Exception]) -> None:
        super().__init__()
        self._connect = connect
        self._busy = busy
        self._running: dict[int, Delivery] = {}
        self._committed: set[str] = set()

    @rule(slot=SLOTS, key=KEYS)
    def deliver(self, slot: int, key: str) -> None:
        """A job is fetched: its handler applies the effect, unless it is done, or another is at it."""
        if slot in self._running:
            return
        connection = self._connect()
        try:
            delivery = Delivery(connection, key)
        except self._busy:  # another is at it, and nobody waits in this test: the job will come again
            connection.close()
            return
        assert delivery.effect.done == (key in self._committed)
        if delivery.effect.done:
            assert delivery.effect.result == f"of {key}"
        else:
            connection.cursor().execute(f"INSERT INTO book (line) VALUES ('{key}')")
            delivery.applied = True
            delivery.effect.result = f"of {key}"
        self._running[slot] = delivery

    @rule(slot=SLOTS)
    def leave(self, slot: int) -> None:
        """The block ends well."""
        delivery = self._running.get(slot)
        if delivery is not None and delivery.inside:
            delivery.block.__exit__(None, None, None)
            delivery.inside = False

    @rule(slot=SLOTS, commit=st.booleans())
    def fail(self, slot: int, commit: bool) -> None:
        """The block raises; a careless caller commits all the same."""
        delivery = self._running.get(slot)
        if delivery is not None and delivery.inside:
            error = ZeroDivisionError()
            delivery.block.__exit__(type(error), error, None)
            if commit:
                delivery.connection.commit()
            self._end(slot)

    @rule(slot=SLOTS)
    def commit(self, slot: int) -> None:
        """The transaction is kept."""
        delivery = self._running.get(slot)
        if delivery is not None and not delivery.inside:
            delivery.connection.commit()
            if delivery.applied:
                self._committed.add(delivery.key)
            self._end(slot)

    @rule(slot=SLOTS)
    def crash(self, slot: int) -> None:
        """The worker dies, wherever it is; the server sees its connection end."""
        if slot in self._running:
            self._end(slot)

    def _end(self, slot: int) -> None:
        self._running.pop(slot).connection.close()

    @invariant()
    def effects_are_those_of_the_model(self) -> None:
        with closing(self._connect()) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT line FROM book")
            lines = sorted(row[0] for row in cursor.fetchall())
            cursor.execute("SELECT effect_key FROM echomq_effects")
            keys = sorted(row[0] for row in cursor.fetchall())
            connection.rollback()
        assert lines == keys == sorted(self._committed)

    def teardown(self) -> None:
        """In the end every job is delivered once more, in peace: then every effect is there, once."""
        for slot in list(self._running):
            self._end(slot)
        for key in ("a", "A", "b"):
            self.deliver(0, key)
            self.leave(0)
            self.commit(0)
        assert self._committed == {"a", "A", "b"}
        self.effects_are_those_of_the_model()


def test_interleavings_on_sqlite() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = iter(range(1_000_000))

        def machine() -> Transactions:
            path = Path(folder) / f"{next(runs)}.db"
            with closing(sqlite3.connect(path)) as db:
                db.execute("PRAGMA journal_mode=WAL")  # a reader need not wait for a writer
                db.execute(BOOK)
                db.execute(once.create_table("sqlite"))
            return Transactions(lambda: sqlite3.connect(path, timeout=0), sqlite3.OperationalError)

        run_state_machine_as_test(machine, settings=EXAMPLES)  # type: ignore[arg-type]  # a factory will do


def test_interleavings_on_postgresql() -> None:
    with postgresql() as host:

        def connect() -> Any:
            options = "-c lock_timeout=10ms"
            return psycopg.connect(host=host, user="echomq", dbname="postgres", options=options)

        def machine() -> Transactions:
            with connect() as db:
                for statement in ("DROP TABLE IF EXISTS book", "DROP TABLE IF EXISTS echomq_effects", BOOK):
                    db.execute(statement)
                db.execute(once.create_table("postgresql"))
            return Transactions(connect, psycopg.errors.LockNotAvailable)

        run_state_machine_as_test(machine, settings=EXAMPLES)  # type: ignore[arg-type]  # a factory will do


class Leases(RuleBasedStateMachine):
    """The three scripts against a pure model, with late copies of every call; a lease ends when the test says so."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._server = server
        self._link = Link(Settings.from_url(server.url))
        self._place = effect_key("emq", "k")
        self._holder: str | None = None
        self._result: bytes | None = None
        self._owners = iter(range(1_000_000))
        self._running: list[str] = []
        server.flush()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def _claim(self, owner: str) -> Claim:
        return self._run(claim_effect(self._link, self._place, owner, 3600))

    def _expected(self, owner: str, claim: Claim) -> None:
        if self._result is not None:
            assert claim == Claim(result=self._result)
        elif self._holder in (None, owner):
            assert claim == Claim(granted=True)
            self._holder = owner
        else:
            assert not claim.granted
            assert claim.result is None
            assert claim.busy_for > 0

    @rule()
    def deliver(self) -> None:
        owner = f"owner-{next(self._owners)}"
        claim = self._claim(owner)
        self._expected(owner, claim)
        if claim.granted:
            self._running.append(owner)

    @precondition(lambda self: self._running)
    @rule(data=st.data())
    def renew_or_repeat(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self._running))
        self._expected(owner, self._claim(owner))

    @precondition(lambda self: self._running)
    @rule(data=st.data(), copies=st.integers(1, 2))
    def finish(self, data: st.DataObject, copies: int) -> None:
        owner = data.draw(st.sampled_from(self._running))
        result = f'"by {owner}"'.encode()
        for _ in range(copies):
            other = self._run(finish_effect(self._link, self._place, owner, result, 3600))
            if self._result is None:
                self._result, self._holder = result, None
            assert other == (None if self._result == result else self._result)
        if copies == 1:
            self._running.remove(owner)

    @precondition(lambda self: self._running)
    @rule(data=st.data(), copies=st.integers(1, 2))
    def give_up(self, data: st.DataObject, copies: int) -> None:
        owner = data.draw(st.sampled_from(self._running))
        for _ in range(copies):
            self._run(release_effect(self._link, self._place, owner))
        if self._holder == owner:
            self._holder = None
        if copies == 1:
            self._running.remove(owner)

    @rule()
    def lease_ends(self) -> None:
        """As after a crash, or a pause that was too long."""
        if self._holder is not None:
            self._server.cli("DEL", self._place)
            self._holder = None

    @invariant()
    def the_key_is_there_when_it_should_be_and_expires(self) -> None:
        expected = self._holder is not None or self._result is not None
        assert (self._server.cli("PTTL", self._place) > 0) == expected

    def teardown(self) -> None:
        with suppress(asyncio.CancelledError):
            self._run(self._link.close())
        self._runner.close()


def test_interleavings_in_redis(server: Server) -> None:
    run_state_machine_as_test(lambda: Leases(server), settings=EXAMPLES)  # type: ignore[arg-type]  # a factory will do
