"""EchoMQ in a Django project: transactions, tasks of its own, and those of Django's tasks framework."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from echomq import EncodingError, Inject, InvalidOption, Job, JobSpec
from tests.support import django_site
from tests.support.databases import mariadb, postgresql
from tests.support.django_site import in_loop, site

django_site.set_up()

from asgiref.sync import sync_to_async  # noqa: E402
from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.core.management import call_command, load_command_class  # noqa: E402
from django.core.management.base import SystemCheckError  # noqa: E402
from django.db import OperationalError, connection, transaction  # noqa: E402
from django.test.utils import override_settings  # noqa: E402

from echomq.integrations.django import (  # noqa: E402
    _tasks,
    enqueue_in_transaction,
    enqueue_on_commit,
    get_app,
    get_outbox,
    get_relay,
)
from echomq.outbox import OutboxStatus  # noqa: E402
from tests.support.django_shop import jobs  # noqa: E402
from tests.support.django_shop.models import Order  # noqa: E402

exceptions: Any = _tasks.part("exceptions")
signals: Any = _tasks.part("signals")
InvalidTask: Any = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError


@pytest.fixture(scope="module")
def databases() -> Iterator[dict[str, Callable[[], dict[str, Any]]]]:
    """The two servers, each started when first asked for."""
    started: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:

        def lazily(name: str, start: Callable[[], Any], entry: Callable[[str], dict[str, Any]]) -> Callable[[], Any]:
            def get() -> dict[str, Any]:
                if name not in started:
                    started[name] = entry(stack.enter_context(start()))
                return started[name]

            return get

        yield {
            "postgresql": lazily("postgresql", postgresql, django_site.of_postgresql),
            "mariadb": lazily("mariadb", mariadb, django_site.of_mariadb),
        }


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def each_project(
    request: pytest.FixtureRequest, url: str, tmp_path: Path, databases: dict[str, Callable[[], dict[str, Any]]]
) -> Iterator[None]:
    """A project on each database in turn."""
    chosen = databases.get(request.param)
    with site(url, django_site.of_sqlite(tmp_path / "db") if chosen is None else chosen()):
        yield


@pytest.fixture
def project(url: str, tmp_path: Path) -> Iterator[None]:
    """A project on SQLite."""
    with site(url, django_site.of_sqlite(tmp_path / "db")):
        yield


class Shelf(str):
    """A thing that is injected."""


def drain(*queues: str) -> None:
    """Works the project's queues until nothing waits."""

    async def work() -> None:
        for name in queues or ("default", "mails"):
            await get_app().worker(name, concurrency=3).run_until_drained()

    in_loop(work)


def waiting(queue: str = "orders") -> list[Any]:
    """The data of the jobs that wait."""
    return [job.data for job in get_app().sync.queue(queue).jobs("waiting")]


def send() -> int:
    return in_loop(lambda: get_relay().run_until_empty())


# -- jobs that belong to a transaction ---------------------------------------------------------------------------------


def test_job_is_enqueued_on_commit_and_not_after_a_rollback(each_project: None) -> None:
    @get_app().task(queue="orders")
    def pack(order: int) -> None: ...

    with transaction.atomic():
        order = Order.objects.create(number=17)
        enqueue_on_commit(pack, order.number)
        with pytest.raises(TypeError, match="missing a required argument"):
            enqueue_on_commit(pack)  # type: ignore[call-arg]
        assert waiting() == []
    assert waiting() == [{"order": 17}]
    with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
        enqueue_on_commit(pack, 18)
        raise ZeroDivisionError
    assert waiting() == [{"order": 17}]
    enqueue_on_commit(pack, 19)  # without a transaction: at once
    assert waiting() == [{"order": 17}, {"order": 19}]


def test_job_and_rows_are_committed_together_or_neither(each_project: None) -> None:
    @get_app().task(queue="orders")
    def pack(order: int) -> None: ...

    with transaction.atomic():
        Order.objects.create(number=17)
        job_id = enqueue_in_transaction(pack, 17)
        with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
            enqueue_in_transaction(pack, 18)
            raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
        enqueue_in_transaction(pack, 19)
        raise ZeroDivisionError
    assert in_loop(get_outbox().status).waiting == 1
    assert send() == 1
    assert waiting() == [{"order": 17}]
    job = get_app().sync.queue("orders").get_job(job_id)
    assert job is not None
    assert in_loop(get_outbox().status) == OutboxStatus(0, 0, None)


def test_relays_of_a_project_share_the_work(each_project: None) -> None:
    @get_app().task(queue="orders")
    def pack(order: int) -> None: ...

    with transaction.atomic():
        for number in range(120):
            enqueue_in_transaction(pack, number)

    async def both() -> list[int]:
        from echomq.integrations.django._outbox import DjangoDatabase
        from echomq.outbox import Outbox, Relay

        boxes = [Outbox(DjangoDatabase("default")) for _ in range(2)]
        sent = await asyncio.gather(*(Relay(box, get_app(), batch=20).run_until_empty() for box in boxes))
        for box in boxes:
            await box.close()
        return list(sent)

    assert sum(in_loop(both)) == 120
    assert sorted(data["order"] for data in waiting()) == list(range(120))


def test_outbox_needs_a_transaction(project: None) -> None:
    @get_app().task(queue="orders")
    def pack(order: float) -> None: ...

    with pytest.raises(InvalidOption, match=r"no transaction .* is open.*with transaction\.atomic\(\)"):
        enqueue_in_transaction(pack, 17)
    with transaction.atomic(), pytest.raises(EncodingError, match="order"):
        enqueue_in_transaction(pack, float("nan"))
    assert in_loop(get_outbox().status).waiting == 0


def test_outbox_refuses_a_connection_without_a_transaction(each_project: None) -> None:
    with pytest.raises(InvalidOption, match="autocommit mode and no transaction is open"):
        get_outbox().add(connection, JobSpec("pack", 1), queue="orders")
    with transaction.atomic():
        get_outbox().add(connection, JobSpec("pack", 2), queue="orders")
    transaction.set_autocommit(False)
    try:
        get_outbox().add(connection, JobSpec("pack", 3), queue="orders")
        transaction.commit()
        get_outbox().add(connection, JobSpec("pack", 4), queue="orders")
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)
    assert send() == 2
    assert waiting() == [2, 3]


def test_commit_that_is_refused_leaves_no_transaction_open(url: str, tmp_path: Path) -> None:
    database = {**django_site.of_sqlite(tmp_path / "db"), "OPTIONS": {"timeout": 0.05}, "CONN_MAX_AGE": 600}
    with site(url, database):
        with transaction.atomic():
            get_outbox().add(connection, JobSpec("pack", 1), queue="orders")

        async def work() -> int:
            with closing(sqlite3.connect(tmp_path / "db", timeout=0.05)) as other:
                other.execute("BEGIN")
                other.execute("SELECT * FROM echomq_outbox").fetchall()  # nobody commits while it reads
                with pytest.raises(OperationalError, match="locked"):
                    await get_relay().run_until_empty()
                other.rollback()
                other.execute("UPDATE echomq_outbox SET error = NULL")
                other.commit()
            return await get_relay().run_until_empty()

        assert in_loop(work) == 1


# -- a project's own tasks ---------------------------------------------------------------------------------------------


def test_connections_are_renewed_around_jobs(each_project: None) -> None:
    app = get_app()
    seen: list[int] = []

    @app.task(queue="orders")
    def break_it() -> None:
        connection.ensure_connection()
        connection.connection.close()  # as a database does that was restarted
        connection.errors_occurred = True

    @app.task(queue="orders")
    def write(number: int) -> None:
        Order.objects.create(number=number)
        seen.append(id(connection.connection))

    @app.task(queue="orders")
    async def awrite(number: int) -> None:
        await Order.objects.acreate(number=number)
        await sync_to_async(lambda: seen.append(id(connection.connection)))()

    async def work() -> None:
        for number in range(3):
            await break_it.enqueue()
            await write.enqueue(number)
            await awrite.enqueue(number + 10)
        await app.worker("orders").run_until_drained()

    in_loop(work)
    assert sorted(Order.objects.values_list("number", flat=True)) == [0, 1, 2, 10, 11, 12]
    assert len(seen) == 6


def test_injection_and_middleware_work_as_ever(project: None) -> None:
    app = get_app()
    ran: list[tuple[str, str, int]] = []

    @app.provide(scope="job")
    def shelf() -> Shelf:
        return Shelf("upper")

    @app.task(queue="orders")
    def pack(order: int, where: Shelf = Inject()) -> None:
        ran.append(("plain", where, Order.objects.count()))

    @app.task(queue="orders")
    async def apack(order: int, where: Shelf = Inject()) -> None:
        ran.append(("async", where, await Order.objects.acount()))

    pack.sync.enqueue(1)
    apack.sync.enqueue(2)
    drain("orders")
    assert sorted(ran) == [("async", "upper", 0), ("plain", "upper", 0)]


def test_sync_and_async_code_enqueue_alike(project: None) -> None:
    @get_app().task(queue="orders")
    def pack(order: int) -> str:
        return f"packed {order}"

    job = pack.sync.enqueue(17)
    drain("orders")
    done = get_app().sync.queue("orders").get_job(job.id)
    assert done is not None
    assert done.result(timeout=10) == "packed 17"

    async def view() -> None:
        await pack.enqueue(18)

    in_loop(view)
    assert waiting() == [{"order": 18}]


# -- Django's tasks framework ------------------------------------------------------------------------------------------


def test_task_runs_and_its_result_can_be_read(project: None) -> None:
    result = jobs.add.enqueue(2, b=3)
    assert (result.status, result.args, result.kwargs, result.backend) == ("READY", [2], {"b": 3}, "default")
    assert result.enqueued_at is not None
    assert result.id.startswith("default:")
    assert (result.started_at, result.finished_at, result.attempts, result.is_finished) == (None, None, 0, False)
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    drain()
    assert result.status == "READY"  # until it is looked at again
    result.refresh()
    assert (result.status, result.return_value, result.attempts, result.errors) == ("SUCCESSFUL", 5, 1, [])
    assert result.started_at is not None
    assert result.finished_at is not None
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at
    again = jobs.add.get_result(result.id)
    assert (again.task.func, again.return_value) == (jobs.add.func, 5)
    with pytest.raises(exceptions.TaskResultMismatch):
        jobs.mail.get_result(result.id)


@pytest.mark.parametrize("unknown", ["default:nobody", "nobody", "", "other:1", "a:b:c"])
def test_unknown_results_are_told(project: None, unknown: str) -> None:
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        jobs.add.get_result(unknown)


def test_jobs_of_others_are_no_results(project: None) -> None:
    job = get_app().sync.queue("default").add("other", {"args": [], "kwargs": {}})
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        jobs.add.get_result(f"default:{job.id}")


def test_failures_have_class_and_traceback(project: None) -> None:
    result = jobs.fail.enqueue("spoon")
    odd = jobs.strange.enqueue()
    drain()
    result.refresh()
    odd.refresh()
    [error] = result.errors
    assert (result.status, error.exception_class) == ("FAILED", jobs.Refused)
    assert "spoon" in error.traceback
    assert "in fail" in error.traceback
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    assert (odd.status, odd.errors[0].exception_class) == ("FAILED", TypeError)


def test_priorities_run_highest_first_and_none_is_zero(project: None) -> None:
    ran: list[int] = []

    def started(task_result: Any, **_: Any) -> None:
        ran.append(task_result.task.priority)

    for priority in (-100, 5, 0, 100, -1):
        jobs.add.using(priority=priority).enqueue(1)
    signals.task_started.connect(started)
    try:
        in_loop(lambda: get_app().worker("default").run_until_drained())
    finally:
        signals.task_started.disconnect(started)
    assert ran == [100, 5, 0, -1, -100]


def test_run_after_and_queue_names(project: None) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    result = jobs.mail.using(run_after=later).enqueue("ada")
    queue = get_app().sync.queue("mails")
    job = queue.get_job(result.id.partition(":")[2])
    assert job is not None
    assert (job.state, job.name) == ("delayed", "tests.support.django_shop.jobs.mail")
    found = jobs.mail.get_result(result.id)
    assert found.status == "READY"
    assert found.task.run_after is not None
    assert abs(found.task.run_after - later) < timedelta(milliseconds=1)
    assert (found.task.queue_name, found.task.priority) == ("mails", 10)
    soon = jobs.mail.enqueue("bob")
    drain()
    assert jobs.mail.get_result(soon.id).return_value == "to bob"
    with pytest.raises(InvalidTask):
        jobs.mail.using(queue_name="nobody").enqueue("bob")
    with pytest.raises(InvalidTask):
        jobs.mail.using(priority=101)
    with pytest.raises(InvalidTask):
        jobs.mail.using(run_after=datetime(2030, 1, 1))  # noqa: DTZ001


def test_context_and_attempts(project: None) -> None:
    result = jobs.attempt.enqueue("more")
    drain()
    result.refresh()
    assert result.return_value == [1, "RUNNING", result.id, "more"]


def test_arguments_without_a_json_form_are_refused(project: None) -> None:
    with pytest.raises(TypeError):
        jobs.add.enqueue(object())  # type: ignore[arg-type]
    with pytest.raises(EncodingError, match=r"data\.args"):
        jobs.add.enqueue(float("inf"))  # type: ignore[arg-type]
    assert get_app().sync.queue("default").counts("waiting", "prioritized") == {"waiting": 0, "prioritized": 0}


def test_async_tasks_and_async_calls(project: None) -> None:
    Order.objects.create(number=1)

    async def view() -> Any:
        result = await jobs.count_orders.aenqueue()
        await get_app().worker("default").run_until_drained()
        await result.arefresh()
        return await jobs.count_orders.aget_result(result.id)

    result = in_loop(view)
    assert (result.status, result.return_value) == ("SUCCESSFUL", 1)


def test_signals_tell_of_a_task(project: None) -> None:
    told: list[tuple[str, str, Any]] = []

    def hear(kind: str) -> Callable[..., None]:
        def receiver(task_result: Any, **_: Any) -> None:
            told.append((kind, str(task_result.status), task_result.id))

        return receiver

    receivers = [(getattr(signals, f"task_{kind}"), hear(kind)) for kind in ("enqueued", "started", "finished")]
    for signal, receiver in receivers:
        signal.connect(receiver)
    try:
        good, bad = jobs.add.enqueue(1), jobs.fail.enqueue("x")
        counted = jobs.count_orders.enqueue()
        drain()
    finally:
        for signal, receiver in receivers:
            signal.disconnect(receiver)
    for result, end in ((good, "SUCCESSFUL"), (bad, "FAILED"), (counted, "SUCCESSFUL")):
        mine = [(kind, status) for kind, status, of in told if of == result.id]
        assert mine == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", end)]


def test_receivers_of_a_signal_may_be_async(project: None) -> None:
    told: list[tuple[str, str, int]] = []

    async def hear(task_result: Any, **_: Any) -> None:
        told.append((task_result.task.func.__name__, str(task_result.status), await Order.objects.acount()))

    async def enqueue() -> None:
        await jobs.count_orders.aenqueue()

    for kind in ("enqueued", "started", "finished"):
        getattr(signals, f"task_{kind}").connect(hear)
    try:
        in_loop(enqueue)
        drain()
        jobs.add.enqueue(1)
        drain()
    finally:
        for kind in ("enqueued", "started", "finished"):
            getattr(signals, f"task_{kind}").disconnect(hear)
    assert told == [
        (name, status, 0) for name in ("count_orders", "add") for status in ("READY", "RUNNING", "SUCCESSFUL")
    ]


class Unnamed:
    """A receiver without a name, for which Django's own line of the log fails."""

    def __call__(self, **_: Any) -> None:
        raise OSError("the unnamed receiver's own trouble")


@pytest.mark.parametrize("kind", ["started", "finished"])
@pytest.mark.parametrize("named", [True, False])
def test_error_of_a_receiver_changes_nothing_of_the_run(
    project: None, kind: str, named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(**_: Any) -> None:
        raise OSError("the receiver's own trouble")

    signal, receiver = getattr(signals, f"task_{kind}"), refuse if named else Unnamed()
    signal.connect(receiver, weak=False)
    try:
        results: list[Any] = [jobs.add.enqueue(1, 2), jobs.count_orders.enqueue()]
        drain()
    finally:
        signal.disconnect(receiver)
    for result in results:
        result.refresh()
    assert [(str(result.status), result.errors, result.return_value) for result in results] == [
        ("SUCCESSFUL", [], 3),
        ("SUCCESSFUL", [], 0),
    ]
    assert caplog.text.count("OSError: the ") == 2


def test_options_of_a_backend_are_those_of_its_jobs(project: None) -> None:
    options = {"attempts": 3, "backoff": 0.01, "timeout": 30, "outbox": True}
    tasks = {
        "default": {"BACKEND": "echomq.integrations.django.EchoMQBackend", "QUEUES": ["default"], "OPTIONS": options}
    }
    finished: list[str] = []

    def hear(task_result: Any, **_: Any) -> None:
        finished.append(str(task_result.status))

    with override_settings(TASKS=tasks):
        signals.task_finished.connect(hear)
        try:
            with transaction.atomic():
                result = jobs.fail.enqueue("x")
                with pytest.raises(exceptions.TaskResultDoesNotExist):
                    result.refresh()
            assert send() == 1
            given_up = jobs.give_up.enqueue()

            async def work() -> None:
                app = get_app()
                async with app.worker("default"):
                    for one in (result, given_up):
                        job: Job[Any] | None = await app.queue("default").get_job(one.id.partition(":")[2])
                        assert job is not None
                        with pytest.raises(Exception, match="failed"):
                            await job.result(timeout=20)

            in_loop(work)
        finally:
            signals.task_finished.disconnect(hear)
        result.refresh()
        given_up.refresh()
    assert (result.status, result.attempts, len(result.errors)) == ("FAILED", 3, 3)
    assert (given_up.status, given_up.attempts) == ("FAILED", 1)
    assert finished == ["FAILED", "FAILED"]


def test_tasks_that_no_program_knows_wait(project: None) -> None:
    result = jobs.add.enqueue(1)
    queue = get_app().sync.queue("default")
    data: Any = queue.get_job(result.id.partition(":")[2]).data  # type: ignore[union-attr]
    job = queue.add("tests.support.django_shop.jobs.gone", data)
    drain()
    found = get_app().sync.queue("default").get_job(job.id)
    assert found is not None
    assert found.state == "delayed"


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], r"E001.*must be a dict"),
        ({"URLS": "x"}, r"E002.*did you mean 'URL'"),
        ({"URL": 6379}, r"E003.*must be a text"),
        ({"URL": "redis://x", "OUTBOX_DATABASE": "other"}, r"E004.*is no alias of DATABASES, which has: 'default'"),
        ({"URL": "http://x"}, r"E005.*http://x"),
        ({"URL": "redis://x", "OPTIONS": {"colour": 1}}, r"E005.*colour"),
        ({"URL": "redis://x", "RELAY": {"batch": 0}}, r"E005.*batch=0"),
    ],
)
def test_check_names_what_is_wrong(given: Any, says: str) -> None:
    get_app.cache_clear()
    with override_settings(ECHOMQ=given), pytest.raises(SystemCheckError) as caught:
        call_command("check")
    get_app.cache_clear()
    text = " ".join(str(caught.value).split())
    assert __import__("re").search(says, text), text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tries": 1}, "is no option"),
        ({"attempts": -1}, "attempts=-1"),
        ({"timeout": "soon"}, "timeout"),
    ],
)
def test_options_of_a_backend_are_checked(project: None, options: Any, says: str) -> None:
    tasks = {"default": {"BACKEND": "echomq.integrations.django.EchoMQBackend", "OPTIONS": options}}
    with override_settings(TASKS=tasks), pytest.raises(ImproperlyConfigured, match=says):
        jobs.add.enqueue(1)


@pytest.mark.parametrize("words", [["echomq_worker"], ["echomq_outbox", "status"]])
def test_commands_say_what_is_wrong_without_a_traceback(
    project: None, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with override_settings(ECHOMQ={"URL": "http://x"}), pytest.raises(SystemExit) as wrong:
        load_command_class("echomq.integrations.django", words[0]).run_from_argv(["manage.py", *words])
    assert "(echomq.E005) ECHOMQ: the server URL 'http://x' cannot be used" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as missing:
        load_command_class("echomq.integrations.django", words[0]).run_from_argv(["manage.py", *words])
    told = capsys.readouterr().err
    assert told.splitlines()[-1] == "CommandError: this command needs typer: pip install 'echomq[django,cli]'"
    assert (wrong.value.code, missing.value.code) == (1, 1)


def test_migration_has_what_the_model_has(project: None) -> None:
    call_command("makemigrations", "echomq", check=True, dry_run=True, verbosity=0)
