"""Payloads of any shape come back whole through any chain of codecs; what was changed never comes back as something else."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from echomq._payloads import Payloads
from echomq._store.codec import decode_json, encode_json
from echomq._types import Misfit, reader
from echomq.errors import PayloadUnreadable
from echomq.payloads import Codec, Compressed, Encrypted, Offloaded, PayloadStore

MARK = b'{"$echomq":'
QUICK = settings(max_examples=150, deadline=None)


class Memory(PayloadStore):
    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def put(self, key: str, body: bytes) -> None:
        assert key not in self.kept
        self.kept[key] = body

    def get(self, key: str) -> bytes:
        return self.kept[key]

    def delete(self, key: str) -> None:
        self.kept.pop(key, None)

    def entries(self) -> Iterator[tuple[str, datetime]]:
        return iter([(key, datetime.now(UTC)) for key in self.kept])


KEYS = [Encrypted.generate_key(), Encrypted.generate_key()]
TEXTS = st.text(st.characters(exclude_categories=()), max_size=30)  # lone surrogates too
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(
    SCALARS | st.just("x" * 500) | st.sampled_from([{"$echomq": {"steps": [], "body": ""}}, {"$echomq": 1}]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS | st.just("$echomq"), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def chains(draw: st.DrawFn) -> Payloads:
    above = st.sampled_from([0, 10, 200, 10_000])
    codecs: list[Codec] = []
    if draw(st.booleans()):
        codecs.append(Compressed(above=draw(above), level=draw(st.integers(1, 9))))
    if draw(st.booleans()):
        codecs.insert(draw(st.integers(0, len(codecs))), Encrypted(KEYS))
    if draw(st.booleans()) or not codecs:
        codecs.append(Offloaded(Memory(), above=draw(above)))
    return Payloads(codecs)


@QUICK
@given(chains(), VALUES)
def test_any_payload_comes_back_whole(payloads: Payloads, value: Any) -> None:
    text = encode_json(value, "data")
    stored = payloads.encode_now(text)
    assert payloads.decode_now(stored) == text
    assert decode_json(payloads.decode_now(stored)) == value
    if stored != text:
        assert list(json.loads(stored)) == ["$echomq"]
    turned = Payloads([*payloads.codecs[::-1]])  # what was done stands in the payload, not in who reads it
    assert turned.decode_now(stored) == text


@QUICK
@given(chains(), VALUES, st.data())
def test_what_was_changed_is_refused_or_the_same(payloads: Payloads, value: Any, data: st.DataObject) -> None:
    text = encode_json(value, "data")
    stored = bytearray(payloads.encode_now(text))
    assume(stored.startswith(MARK) and json.loads(stored)["$echomq"]["steps"])
    at = data.draw(st.integers(len(MARK), len(stored) - 1))
    stored[at] = data.draw(st.integers(0, 255))
    try:
        assert payloads.decode_now(bytes(stored)) == text
    except PayloadUnreadable:
        pass


@QUICK
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_garbage_is_refused_in_words(garbage: bytes) -> None:
    payloads = Payloads([Compressed(), Encrypted(KEYS), Offloaded(Memory())])
    with pytest.raises(PayloadUnreadable):
        payloads.decode_now(b'{"$echomq":' + garbage)
    for name in ("zlib", "fernet", "store", "?"):
        wrapped = {"$echomq": {"steps": [{"name": name, "key": "k"}], "body": "e30="}}
        with pytest.raises(PayloadUnreadable):
            payloads.decode_now(json.dumps(wrapped, separators=(",", ":")).encode())


# -- types


@dataclass
class Row:
    number: int
    price: Decimal
    when: datetime
    id: UUID
    raw: bytes
    names: dict[str, list[str]]
    place: tuple[float, float] | None = None


class Sheet(msgspec.Struct):
    rows: list[Row]
    title: str | None = None


MOMENTS = st.datetimes(timezones=st.just(UTC))
ROWS = st.builds(
    Row,
    number=st.integers(),
    price=st.decimals(allow_nan=False, allow_infinity=False),
    when=MOMENTS,
    id=st.uuids(),
    raw=st.binary(max_size=20),
    names=st.dictionaries(TEXTS, st.lists(TEXTS, max_size=2), max_size=3),
    place=st.none() | st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 2),
)


@QUICK
@given(st.builds(Sheet, rows=st.lists(ROWS, max_size=3), title=st.none() | TEXTS))
def test_typed_values_come_back_equal(sheet: Sheet) -> None:
    wanted = reader(Sheet)
    assert wanted is not None
    text = encode_json(sheet, "data")
    assert wanted.decode(text, decode_json) == sheet
    assert wanted.convert(decode_json(text)) == sheet


@QUICK
@given(st.lists(ROWS, min_size=1, max_size=3), st.data())
def test_the_place_of_what_does_not_fit_is_found(rows: list[Row], data: st.DataObject) -> None:
    wanted = reader(dict[str, Sheet])
    assert wanted is not None
    keys = data.draw(st.lists(st.text(max_size=5), min_size=1, max_size=4, unique=True))
    plain = decode_json(encode_json({key: Sheet(rows) for key in keys}, "data"))
    key = data.draw(st.sampled_from(keys))
    number = data.draw(st.integers(0, len(rows) - 1))
    plain[key]["rows"][number]["number"] = "x"
    with pytest.raises(Misfit) as misfit:
        wanted.convert(plain)
    name = f".{key}" if key.isidentifier() else f"[{key!r}]"
    assert misfit.value.path == f"{name}.rows[{number}].number"
    assert misfit.value.found == "x"


@QUICK
@given(st.integers(), st.integers(53, 400))
def test_whole_numbers_of_any_size(small: int, bits: int) -> None:
    wanted = reader(int)
    assert wanted is not None
    for number in (small, 2**bits + 1, -(2**bits) - 1):
        assert wanted.decode(encode_json(number, "data"), decode_json) == number
        if abs(number) > 2**53:
            assert wanted.convert(str(number)) == number
    with pytest.raises(Misfit):
        wanted.convert(str(math.copysign(1.5, small)))
