"""The demo from its start to its audit."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.markup import escape

from echomq import Connection, JobSpec, Queue
from echomq._redis import embedded
from echomq._redis.client import Link
from echomq._redis.connect import Settings
from echomq._store.keys import QueueKeys
from echomq.cli._demo import example
from echomq.cli._demo.crew import TICK, Crew
from echomq.cli._demo.naive import NaiveQueue
from echomq.cli._demo.story import Story
from echomq.cli._remove import remove_queue
from echomq.connection import join_embedded
from echomq.errors import EchoMQError
from portal import make_roster, roster
from portal.seats import Audit, Seats
from portal.worker import CONCURRENCY, LOCK_DURATION, MAX_STALLED_COUNT, PACE, STALLED_INTERVAL

T = TypeVar("T")

_PATIENCE = 60.0
"""Seconds without a job finished after which the demo ends, and its audit says what is missing."""

_SHORTEST = 4.0
"""Seconds that the workers should have work for."""

_SLOWEST = 1.0
"""Seconds that an enrolment takes, on average, at most."""

_OUTAGE = 30.0
"""Seconds for which the demo goes on asking a server that is away."""


class CannotStart(EchoMQError):
    """What was asked for cannot be done."""


class Told(Exception):
    """A signal ended the demo.

    Attributes:
        signal: which.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number


@dataclass(frozen=True)
class Wish:
    """What the user asked for.

    Attributes:
        jobs: how many good rows to take; None for all.
        workers: how many work at a time.
        kills: how many of them to kill.
        input: a roster, or None for the one that comes with the demo.
        url: a server, or None for one of the demo's own.
        seed: of all choices of the demo.
    """

    jobs: int | None
    workers: int
    kills: int
    input: Path | None
    url: str | None
    seed: int


@dataclass(frozen=True)
class Report:
    """What came of it. Each attribute is a field of ``--json``.

    Attributes:
        clean: whether the audit found nothing wrong.
        rows: of the roster, read.
        valid_rows: those that could be used.
        jobs: added to the queue, one for each valid row.
        finished: completed or failed, by the queue's own count.
        failed: those that failed.
        redelivered: how often a handler was called for a job beyond the first time.
        guarded: jobs whose seat was taken by a delivery of which the queue never heard; the next one met the guard.
        effects: seats taken, by the facts that were recorded.
        already_enrolled: jobs of rows that ask again for a seat that the learner has.
        course_full: jobs that came to a full course.
        duplicate_effects: facts beyond the first for the same learner and course.
        over_limit: roster rows beyond a course's seats.
        torn: a seat, a roster row or a fact without the others.
        lost: valid rows with neither a seat nor a full course.
        kills: workers killed while they held jobs.
        freezes: workers frozen while they held jobs.
        workers: at a time.
        naive_jobs: enrolments that went to the plain list.
        naive_kills: how often its consumer was killed while it held one.
        naive_lost: those of its enrolments with neither a seat nor a full course.
        seconds: how long it took.
        seed: of all choices of the demo.
    """

    clean: bool
    rows: int
    valid_rows: int
    jobs: int
    finished: int
    failed: int
    redelivered: int
    guarded: int
    effects: int
    already_enrolled: int
    course_full: int
    duplicate_effects: int
    over_limit: int
    torn: int
    lost: int
    kills: int
    freezes: int
    workers: int
    naive_jobs: int
    naive_kills: int
    naive_lost: int
    seconds: float
    seed: int


def play(wish: Wish, story: Story) -> Report:
    """Runs the demo.

    Raises:
        RosterError: the roster cannot be used.
        CannotStart: there are fewer rows than jobs, or the server cannot be used.
        EchoMQError: the server went away in the middle, and did not come back.
        WorkersCrash, ConsumerCrash: the demo's own processes end by themselves.
        Told: a signal ended it.
    """
    asked = read_roster(wish)
    with tempfile.TemporaryDirectory(prefix="echomq-demo-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with _server(wish.url, folder) as url:
            return asyncio.run(_until_told(Play(wish, asked, story, url, folder)))


def read_roster(wish: Wish) -> roster.Roster:
    """Reads the roster that is asked for, or makes a longer one like that of the example.

    Raises:
        RosterError: it cannot be used.
        CannotStart: there are fewer rows than jobs.
    """
    path = wish.input if wish.input is not None else example.folder() / "portal" / "roster.csv"
    asked = roster.read(path, wish.jobs)
    if wish.jobs is None or len(asked.enrolments) == wish.jobs:
        return asked
    if wish.input is not None:
        raise CannotStart(
            f"--jobs {wish.jobs}: the valid rows of {path} are {len(asked.enrolments)}; ask for at most that many, or leave "
            "--jobs out to take them all"
        )
    with tempfile.TemporaryDirectory(prefix="echomq-demo-") as name:
        longer = Path(name) / "roster.csv"
        with longer.open("w", encoding="utf-8", newline="") as file:
            make_roster.write(file, wish.jobs + wish.jobs // 10 + 100)  # one or two in a hundred rows are bad
        return roster.read(longer, wish.jobs)


@contextmanager
def _server(url: str | None, folder: Path) -> Iterator[str]:
    """A URL that every process can use: of a server of the demo's own, or of the one that the user named."""
    if url is not None:
        theirs = _joined(join_embedded, url)
        with nullcontext() if theirs is None else theirs:
            yield url if theirs is None else theirs.url
        return
    before = os.environ.get("ECHOMQ_HOME")
    os.environ["ECHOMQ_HOME"] = str(folder)
    try:
        with _joined(embedded.join, "demo") as server:
            try:
                yield server.url
            finally:
                embedded.stop("demo", force=True)  # now, because its folder is about to go
    finally:
        if before is None:
            del os.environ["ECHOMQ_HOME"]
        else:
            os.environ["ECHOMQ_HOME"] = before


def _joined(join: Callable[[str], T], name: str) -> T:
    try:
        return join(name)
    except EchoMQError as error:
        raise CannotStart(str(error)) from error


async def _until_told(demo: Play) -> Report:
    told: list[int] = []
    running = asyncio.create_task(demo.run())

    def tell(number: int) -> None:
        told.append(number)
        running.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, tell, number)
    try:
        return await running
    except asyncio.CancelledError:
        if told:
            raise Told(told[0]) from None
        raise


class Play:
    """One run."""

    def __init__(self, wish: Wish, asked: roster.Roster, story: Story, url: str, folder: Path) -> None:
        self._wish = wish
        self._asked = asked
        self._story = story
        self._url = url
        self._jobs = len(asked.enrolments)
        # A name of its own, so that it meets nothing of the user's on the user's server.
        self._name = f"portal-demo-{os.urandom(4).hex()}"
        self._list = f"{self._name}-list"
        self._seats = Seats.create(folder / "portal.db", asked.courses)
        self._chance = random.Random(wish.seed)
        self._crew = Crew(
            wish.workers,
            url=url,
            queue=self._name,
            database=folder / "portal.db",
            # A short roster is worked through slowly, so that there is somebody with jobs in hand to be killed.
            pace=min(max(PACE, _SHORTEST * wish.workers * CONCURRENCY / self._jobs), _SLOWEST),
            folder=folder,
            seats=self._seats,
            chance=random.Random(self._chance.random()),
            story=story,
        )
        self._naive = NaiveQueue(
            asked.enrolments,
            asked.courses,
            url=url,
            key=self._list,
            folder=folder,
            chance=random.Random(self._chance.random()),
            story=story,
        )
        self._finished = 0
        self._failed = 0
        self._changed_at = time.monotonic()
        self._given_up = False
        self._looked = asyncio.Event()

    async def run(self) -> Report:
        """From the first word with the server to the audit."""
        start = time.monotonic()
        try:
            async with Queue(self._name, connection=Connection(self._url, wait=0)) as queue:
                await queue.counts("completed")
        except EchoMQError as error:
            raise CannotStart(str(error)) from error
        async with Connection(self._url, wait=_OUTAGE) as connection, Queue(self._name, connection=connection) as queue:
            try:
                await self._work(queue)
                await self._crew.stop()
                await self._crew.look()
                audit = self._seats.audit(self._asked.enrolments)
            finally:
                await self._crew.end()
                self._seats.close()
                await self._clean_up()
        return self._report(audit, time.monotonic() - start)

    async def _clean_up(self) -> None:
        if self._wish.url is None:
            return  # the server goes, and its data with it
        try:
            await remove(self._url, self._name, self._list)
        except EchoMQError as error:
            self._story.warn(f"the demo's queue {self._name!r} stays on the server: {error}")

    async def _work(self, queue: Queue) -> None:
        self._introduce()
        self._story.expect(self._jobs, len(self._naive.enrolments))
        await self._crew.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._add(queue))
                others = [
                    group.create_task(self._naive.run()),
                    group.create_task(self._kill()),
                    group.create_task(self._freeze()),
                ]
                group.create_task(self._watch(queue, others))
        except* EchoMQError as errors:
            first: BaseException = errors
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise first from None

    def _introduce(self) -> None:
        wish, bad = self._wish, self._asked.bad
        example_of_bad = f", such as line {bad[0][0]}: {bad[0][1]}" if bad else ""
        self._story.say(
            f"[bold]{self._asked.rows:,} rows[/] of the roster; {self._jobs:,} valid ones become jobs of the queue "
            f"[bold]{self._name}[/]. {len(bad):,} are bad{escape(example_of_bad)}.\n"
            f"[bold]{wish.workers} worker{'s' * (wish.workers > 1)}[/] with {CONCURRENCY} jobs at a time each "
            f"(lock_duration={LOCK_DURATION:g}, stalled_interval={STALLED_INTERVAL:g}, "
            f"max_stalled_count={MAX_STALLED_COUNT}). {wish.kills} will be killed with jobs in hand and replaced, one frozen.\n"
            f"Beside them, {len(self._naive.enrolments)} enrolments go through a [bold]plain list[/] (RPUSH, BLPOP), whose "
            f"consumer will be killed as well.\n"
            f"[dim]--seed {wish.seed} makes the same choices again; the timing is the machine's.[/]"
        )

    async def _add(self, queue: Queue) -> None:
        # What any program could add, in any language: a name, and named arguments.
        await queue.add_bulk(
            JobSpec("enroll", {"learner": learner, "course": course}) for learner, course in self._asked.enrolments
        )

    @property
    def _over(self) -> bool:
        return self._given_up or self._finished >= self._jobs

    async def _kill(self) -> None:
        for share in sorted(self._chance.uniform(0.05, 0.7) for _ in range(self._wish.kills)):
            await self._reached(share)
            await self._crew.kill(lambda: self._over)

    async def _freeze(self) -> None:
        await self._reached(0.3)
        await self._crew.freeze(lambda: self._over)

    async def _reached(self, share: float) -> None:
        while self._finished < int(share * self._jobs) and not self._over:
            await self._looked.wait()

    async def _watch(self, queue: Queue, others: list[asyncio.Task[None]]) -> None:
        while not (self._over and all(other.done() for other in others)):
            await self._crew.look()
            counts = await queue.counts("waiting", "active", "completed", "failed")
            finished = counts["completed"] + counts["failed"]
            if finished != self._finished:
                self._changed_at = time.monotonic()
            elif time.monotonic() - self._changed_at > _PATIENCE and not self._over:
                self._given_up = True
                self._story.say(
                    f"[red]No job has finished for {_PATIENCE:.0f} s; the audit will say what is missing.[/]"
                )
            self._finished, self._failed = finished, counts["failed"]
            self._looked.set()
            self._looked.clear()  # who waits now was woken; who waits later waits for the next look
            self._story.progress(
                finished,
                f"{counts['active']} active · {self._crew.redelivered} redelivered · {self._crew.kills} kills",
                self._naive.done,
                f"{self._naive.kills} kills",
            )
            await asyncio.sleep(TICK)

    def _report(self, audit: Audit, seconds: float) -> Report:
        return Report(
            clean=audit.is_clean and self._finished == self._jobs,
            rows=self._asked.rows,
            valid_rows=len(self._asked.enrolments),
            jobs=self._jobs,
            finished=self._finished,
            failed=self._failed,
            redelivered=self._crew.redelivered,
            guarded=self._crew.guarded,
            effects=audit.effects,
            already_enrolled=audit.already_enrolled,
            course_full=audit.course_full,
            duplicate_effects=audit.duplicate_effects,
            over_limit=audit.over_limit,
            torn=audit.torn,
            lost=audit.lost,
            kills=self._crew.kills,
            freezes=self._crew.freezes,
            workers=self._wish.workers,
            naive_jobs=len(self._naive.enrolments),
            naive_kills=self._naive.kills,
            naive_lost=self._naive.lost,
            seconds=round(seconds, 2),
            seed=self._wish.seed,
        )


def tell(report: Report, wish: Wish, story: Story) -> None:
    """Puts the report on the screen."""
    story.audit(
        {
            "valid rows": (report.valid_rows, report.naive_jobs),
            "killed with work in hand": (report.kills, report.naive_kills),
            "frozen": (report.freezes, ""),
            "jobs finished": (report.finished, ""),
            "delivered again": (report.redelivered, "never"),
            "effects (LearnerEnrolled)": (report.effects, ""),
            "asked twice, already enrolled": (report.already_enrolled, ""),
            "turned away, course full": (report.course_full, ""),
            "duplicate effects": (_fault(report.duplicate_effects), ""),
            "seats over limit": (_fault(report.over_limit), ""),
            "lost": (_fault(report.lost), _fault(report.naive_lost)),
        },
        list(_notes(report, wish.kills)),
    )


def _fault(count: int) -> str:
    return f"[bold red]{count:,}[/]" if count else "0"


def _notes(report: Report, wished: int) -> Iterator[str]:
    if report.kills < wished:
        yield f"The jobs ran out after {report.kills} of {wished} kills."
    if report.guarded:
        yield (
            f"Of the jobs that were delivered again, {report.guarded} had their seat already: their worker died after the "
            "commit, before the queue heard of it.\nThe guard answered already_enrolled and recorded nothing. At least "
            "once in delivery, exactly once in effect."
        )
    if report.failed:
        yield f"[red]Jobs failed: {report.failed}.[/]"
    if report.torn:
        yield f"[red]Seats, roster rows or facts that stand without the others: {report.torn}.[/]"
    if report.finished != report.jobs:
        yield f"[red]Jobs that did not finish: {report.jobs - report.finished}.[/]"
    yield (
        f"[bold green]The audit is clean[/] after {report.seconds:.1f} s."
        if report.clean
        else (f"[bold red]The audit is NOT clean[/] after {report.seconds:.1f} s.")
    )


async def remove(url: str, queue: str, plain_list: str) -> None:
    """Removes the demo's queue and its list from the user's server, some keys at a time."""
    keys = QueueKeys.of(queue)
    link = Link(Settings.from_url(url))
    try:
        await link.call("UNLINK", plain_list)
        await remove_queue(link, keys)
    finally:
        await link.close()
