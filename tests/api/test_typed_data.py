"""Typed data: arguments and results of every kind, checked before a handler runs, with the place of what does not fit."""

from __future__ import annotations

import enum
import logging
import math
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from echomq import EchoMQ, EncodingError, InvalidOption, JobFailed, Queue, ResultUnavailable, Worker


class Level(enum.Enum):
    GOLD = "gold"
    SILVER = "silver"


@dataclass
class Seat:
    row: int
    taken_at: datetime
    notes: dict[str, list[int]] = field(default_factory=dict)


class Room(msgspec.Struct):
    name: str
    seats: list[Seat]


class Plan(TypedDict):
    rooms: list[Room]
    level: NotRequired[Level]


class Address(pydantic.BaseModel):
    street: str
    since: date | None = None
    zip_code: str = pydantic.Field(default="0000", alias="zip")


class Person(pydantic.BaseModel):
    name: str
    age: Annotated[int, pydantic.Field(ge=0)]
    homes: list[Address] = []


class Company(pydantic.BaseModel):
    name: str
    vat: str


class Order(msgspec.Struct):
    buyer: Person
    others: dict[str, Person] = {}


@pytest.fixture
async def app(url: str) -> AsyncIterator[EchoMQ]:
    async with EchoMQ(url) as made:
        yield made


NOW = datetime(2026, 5, 17, 9, 30, 0, 123456, tzinfo=UTC)
SEAT = Seat(3, NOW, {"a b": [1], "c": []})
ANN = Person(name="Ann", age=41, homes=[Address(street="Main", since=date(2020, 2, 29), zip="1010")])
FIRM = Company(name="Acme", vat="AT1")

VALUES: list[tuple[Any, Any]] = [
    (int, 2**63 + 1),
    (int, -(2**200)),
    (list[int], [2**64, 0, -1]),
    (float, 0.1),
    (str, "é\u0000😀 \ud800"),
    (bytes, b"\x00\xff"),
    (bool, True),
    (datetime, NOW),
    (date, date(2026, 2, 28)),
    (timedelta, timedelta(days=1, microseconds=5)),
    (uuid.UUID, uuid.UUID(int=7)),
    (Decimal, Decimal("12345678901234567890.10")),
    (Level, Level.SILVER),
    (set[int], {1, 2}),
    (tuple[int, str], (1, "a")),
    (dict[int, str], {1: "a"}),
    (dict[str, Decimal], {"x": Decimal("0.10")}),
    (int | str | None, None),
    (Seat, SEAT),
    (list[Seat] | None, [SEAT]),
    (Room, Room("r", [SEAT])),
    (Plan, {"rooms": [Room("r", [SEAT])], "level": Level.GOLD}),
    (Person, ANN),
    (Person | None, ANN),
    (list[Person], [ANN, ANN]),
    (dict[str, Person | None], {"a": ANN, "b": None}),
    (Person | Company, FIRM),
    (list[Person | Company], [ANN, FIRM]),
    (dict[str, Person | int], {"a": ANN, "b": 3}),
    (tuple[Person, ...], (ANN,)),
    (Order, Order(ANN, {"x y": ANN})),
    (Annotated[int, pydantic.Field(gt=0)], 3),
    (Annotated[int, msgspec.Meta(gt=0)], 3),
]


@pytest.mark.parametrize(
    ("kind", "value"), VALUES, ids=lambda value: str(value)[:40].encode("ascii", "replace").decode()
)
async def test_a_value_of_each_kind_goes_there_and_back(app: EchoMQ, kind: Any, value: Any) -> None:
    seen = []

    async def echo(value: object) -> object:
        seen.append(value)
        return value

    echo.__annotations__ = {"value": kind, "return": kind}
    task = app.task(queue="echo")(echo)
    async with app.worker("echo"):
        back = await (await task.enqueue(value)).result(timeout=10)
    assert seen == [value]
    assert (type(back), back) == (type(value), value)


BAD: list[tuple[Any, Any, str]] = [
    (Room, {"name": "r", "seats": [{"row": "x", "taken_at": "2026-01-01T00:00:00Z"}]}, "value.seats[0].row='x'"),
    (dict[str, list[int]], {"ok": [1], "b c": [1, "x"]}, "value['b c'][1]='x'"),
    (dict[str, dict[str, int]], {"a": {"k": 1}, "b": {"m": "x"}}, "value.b.m='x'"),
    (Seat, {"row": 1, "taken_at": "yesterday"}, "value.taken_at='yesterday'"),
    (Person, {"name": "n", "age": -1}, "value.age=-1 of task 'take': Input should be greater than or equal to 0"),
    (list[Person], [{"name": "n", "age": 1, "homes": [{"street": 5}]}], "value[0].homes[0].street=5"),
    (Order, {"buyer": {"name": "n"}}, "value.buyer.age=None of task 'take': Field required"),
    (Annotated[int, pydantic.Field(gt=0)], 0, "value=0 of task 'take': Input should be greater than 0"),
    (Annotated[int, msgspec.Meta(gt=0)], 0, "value=0 of task 'take': Expected `int` >= 1"),
    (int, 1.5, "value=1.5 of task 'take': Expected `int`, got `float`"),
    (str, ["a"], "value=['a'] of task 'take': Expected `str`, got `list`"),
    (int | None, {}, "value={} of task 'take': Expected `int | None`, got `dict`"),
    (list[int], None, "value=None of task 'take': Expected `list`, got `None`"),
    (int, "12", "value='12' of task 'take': Expected `int`, got `str`"),
    (Level, "bronze", "value='bronze' of task 'take': Invalid enum value"),
]


@pytest.mark.parametrize(("kind", "data", "said"), BAD)
async def test_what_does_not_fit_is_named_and_the_handler_does_not_run(
    app: EchoMQ, kind: Any, data: Any, said: str
) -> None:
    ran = []

    async def take(value: object) -> None:
        ran.append(value)

    take.__annotations__ = {"value": kind, "return": None}
    task = app.task(queue="strict", attempts=5)(take)
    with pytest.raises(TypeError, match=r"task 'take': argument value"):
        await task.enqueue(data)
    job = await app.queue("strict").add("take", {"value": data}, attempts=5)
    async with app.worker("strict") as worker:
        with pytest.raises(JobFailed) as failure:
            await job.result(timeout=10)
        assert f"argument {said}" in failure.value.reason
        assert worker.is_running
    found = await job.refresh()
    assert found is not None
    assert (found.attempts_made, found.failure_kind, ran) == (1, "unrecoverable", [])


async def test_what_more_there_is_is_ignored_with_a_line_in_the_log_or_forbidden(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with EchoMQ(url) as open_app, EchoMQ(url, extra="forbid") as strict_app:
        for app in (open_app, strict_app):

            @app.task(queue="more")
            async def take(a: int, b: int = 2) -> int:
                return a + b

            @app.task(queue="more", extra="ignore")
            async def lax(a: int) -> int:
                return a

            @app.task(queue="more")
            async def many(a: int, **others: int) -> int:
                return a + sum(others.values())

        queue = open_app.queue("more")
        caplog.set_level(logging.WARNING, "echomq")
        async with open_app.worker("more"):
            jobs = [await queue.add("take", {"a": 1, "new": 5}) for _ in range(3)]
            assert [await job.result(timeout=10) for job in jobs] == [3, 3, 3]
            assert await (await queue.add("many", {"a": 1, "new": 5})).result(timeout=10) == 6
        assert caplog.text.count("arguments that it does not take, which are ignored: 'new'") == 1
        async with strict_app.worker("more"):
            with pytest.raises(JobFailed, match="unexpected keyword argument 'new'"):
                await (await queue.add("take", {"a": 1, "new": 5})).result(timeout=10)
            assert await (await queue.add("lax", {"a": 1, "new": 5})).result(timeout=10) == 1
            with pytest.raises(JobFailed, match="missing a required argument: 'a'"):
                await (await queue.add("take", {"b": 5})).result(timeout=10)
    with pytest.raises(InvalidOption, match="extra='drop': must be one of 'ignore', 'forbid'"):
        EchoMQ(url, extra="drop")  # type: ignore[arg-type]


async def test_what_json_has_not_is_refused_where_it_stands(app: EchoMQ) -> None:
    @app.task(queue="nan")
    async def take(prices: dict[str, list[float]], who: Person | None = None) -> None: ...

    class Measured(pydantic.BaseModel):
        values: list[float]

    with pytest.raises(EncodingError, match=r"data\.prices\.a\[1\] is nan"):
        await take.enqueue({"a": [1.0, math.nan]})
    with pytest.raises(EncodingError, match=r"data\.prices\['b c'\]\[0\] is -inf"):
        await take.enqueue({"b c": [-math.inf]})
    with pytest.raises(EncodingError, match=r"data\.of\.values\[1\] is inf"):
        await app.queue("nan").add("take", {"of": Measured(values=[1, math.inf])})
    assert await app.queue("nan").count() == 0


class Unknown:
    """No library knows it."""


async def test_what_nobody_knows_is_passed_on_as_it_came(app: EchoMQ) -> None:
    @app.task(queue="unknown")
    async def take(one: Unknown, some: list[Unknown], row: dict[str, Unknown | None]) -> list[Unknown]:
        return [one, *some, *row.values()]  # type: ignore[list-item]

    async with app.worker("unknown"):
        job = await app.queue("unknown").add("take", {"one": 1, "some": [2], "row": {"a": "b"}})
        assert await take._returning(job).result(timeout=10) == [1, 2, "b"]


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr | None = None


class Site(pydantic.BaseModel):
    logins: dict[str, list[Login]]


async def test_a_secret_is_refused_that_pydantic_would_write_as_stars(app: EchoMQ) -> None:
    with pytest.raises(EncodingError, match=r"data\.password is of type SecretStr"):
        await app.queue("secrets").add("login", Login(user="u", password=pydantic.SecretStr("x")))
    login = Login(user="u", password=pydantic.SecretStr("x"))
    with pytest.raises(EncodingError, match=r"data\.logins\.a\[1\]\.password is of type SecretStr"):
        await app.queue("secrets").add("site", Site(logins={"a": [Login(user="u"), login]}))
    assert (await app.queue("secrets").add("site", Site(logins={"a": [Login(user="u")]}))).id == "1"


async def test_whole_numbers_that_javascript_writes_as_text_are_taken_for_int(app: EchoMQ) -> None:
    @app.task(queue="big")
    async def double(number: int) -> int:
        return 2 * number

    async with app.worker("big"):
        job = await app.queue("big").add("double", {"number": str(2**63 + 1)})
        assert await job.returning(int).result(timeout=10) == 2**64 + 2
        for text in ("12", "9007199254740992.5", " 18446744073709551616"):
            with pytest.raises(JobFailed, match="Expected `int`, got `str`"):
                await (await app.queue("big").add("double", {"number": text})).result(timeout=10)


async def test_results_are_read_by_their_annotation_and_by_returning(url: str) -> None:
    results: dict[str, Any] = {
        "person": ANN, "plain": {"name": "x", "age": 1}, "wrong": {"name": "x", "age": "y"}, "text": "a\ud800", "big": 2**70
    }  # fmt: skip

    async def process(job: Any) -> Any:
        return results[job.name]

    async with Queue("results", connection=url) as queue, Worker("results", process, connection=url):
        person = await queue.add("person")
        assert await person.result(timeout=10) == ANN.model_dump(mode="json", by_alias=True)
        assert await person.returning(Person).result(timeout=10) == ANN
        assert await (await queue.add("plain")).returning(Person).result(timeout=10) == Person(name="x", age=1)
        assert await (await queue.add("text")).returning(str).result(timeout=10) == "a\ud800"
        assert await (await queue.add("big")).returning(int).result(timeout=10) == 2**70
        with pytest.raises(ResultUnavailable, match=r"does not fit the type .* valid integer.* at `\.age`"):
            await (await queue.add("wrong")).returning(Person).result(timeout=10)
        with pytest.raises(InvalidOption, match="must be a type that msgspec can make from JSON"):
            person.returning(Queue)
        assert await person.returning(Any).result(timeout=10) == await person.result(timeout=10)
