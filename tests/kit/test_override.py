"""What is injected can be something else in a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pytest

from echomq import EchoMQ, Inject, InvalidOption
from echomq.testing import Inline, Kit, Server, inline, on_server

app = EchoMQ("redis://127.0.0.1:1")


class Mailer:
    def send(self, to: str) -> str:
        raise AssertionError("a real mail is sent")


class FakeMailer(Mailer):
    def send(self, to: str) -> str:
        return f"no mail to {to}"


class Post:
    def __init__(self, mailer: Mailer, name: str) -> None:
        self.mailer = mailer
        self.name = name


class Seats:
    pass


Sender = Annotated[str, "sender"]


@app.provide(scope="process")
async def mailer() -> Mailer:
    raise AssertionError("connects to a real server")


@app.provide
def post(mailer: Mailer = Inject(), sender: Sender = Inject()) -> Iterator[Post]:
    yield Post(mailer, sender)


@app.task
async def mail(to: str, post: Post = Inject()) -> str:
    return f"{post.mailer.send(to)} of {post.name}"


@app.task
def plain(sender: Sender = Inject()) -> str:
    return sender


@app.task
async def seats(seats: Seats = Inject()) -> str:
    return type(seats).__name__


def overridden(kit: Kit) -> None:
    kit.override(Mailer, FakeMailer())
    kit.override(Sender, "the college")  # which nothing provides here
    kit.override(Seats, 7)


async def test_a_value_stands_in_for_what_a_provider_makes(throw_away: Server) -> None:
    async with on_server(app, throw_away) as kit:
        overridden(kit)
        jobs: list[Any] = [await mail.enqueue("ada"), await plain.enqueue(), await seats.enqueue()]
        await kit.run_until_drained()
        assert [await job.result() for job in jobs] == ["no mail to ada of the college", "the college", "int"]
        kit.override(Sender, "the dean")
        kit.override(Post, Post(FakeMailer(), "nobody"))
        jobs = [await mail.enqueue("ada"), await plain.enqueue()]
        await kit.run_until_drained()
        assert [await job.result() for job in jobs] == ["no mail to ada of nobody", "the dean"]


async def test_inline(throw_away: Server) -> None:
    async with inline(app, throw_away) as jobs:
        overridden(jobs)
        assert (await mail.enqueue("ada")).return_value == "no mail to ada of the college"
        with pytest.raises(
            InvalidOption, match=r"workers of the app are running.*, which inline is with the first job"
        ):
            jobs.override(Sender, "the dean")


def test_plain_code(throw_away: Server) -> None:
    with inline(app, throw_away) as jobs:
        overridden(jobs)
        assert mail.sync.enqueue("ada").return_value == "no mail to ada of the college"


@pytest.mark.parametrize("make", [on_server, inline])
async def test_it_ends_with_the_kit(make: Callable[[EchoMQ, Server], Kit], throw_away: Server) -> None:
    async with make(app, throw_away) as kit:
        overridden(kit)
    with pytest.raises(InvalidOption, match="not open"):
        kit.override(Mailer, FakeMailer())
    async with on_server(app, throw_away):
        with pytest.raises(InvalidOption, match="nothing provides"):
            await app.worker().run_until_drained()


async def test_workers_that_run_keep_what_they_have(throw_away: Server) -> None:
    async with on_server(app, throw_away) as kit:
        overridden(kit)
        async with app.running():
            with pytest.raises(InvalidOption, match=r"override\(.*Mailer.*workers of the app are running"):
                kit.override(Mailer, FakeMailer())
        kit.override(Mailer, FakeMailer())


@pytest.mark.parametrize("unknown", [FakeMailer, int, Annotated[str, []], "Mailer", Inline])
async def test_a_type_that_nobody_knows_is_refused(throw_away: Server, unknown: Any) -> None:
    async with on_server(app, throw_away) as kit:
        with pytest.raises(
            InvalidOption, match=r"nothing provides it, and no task wants it.*There are: Mailer, Post, Seats"
        ):
            kit.override(unknown, FakeMailer())
