"""Every error of the public tree, whatever it is made of."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from echomq import errors
from echomq.errors import EchoMQError, Outcome

GIVEN: dict[Any, Any] = {
    str: "some text",
    str | None: "more text",
    int: 7,
    int | None: 8,
    float | timedelta: timedelta(seconds=9),
    Sequence[str]: ("1", "2"),
    Sequence[int]: (3, 4),
}
"""By annotation, what an error is made of here."""


def classes_below(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for below in kind.__subclasses__():
        if below.__module__.split(".")[0] == "echomq":
            yield from classes_below(below)


ALL = [*classes_below(EchoMQError), *classes_below(Outcome)]


def made(kind: type[Exception]) -> Exception:
    if not inspect.isfunction(kind.__init__):
        return kind("some text")
    hints = typing.get_type_hints(kind.__init__)
    before: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(kind.__init__).parameters.items())[1:]:
        value = GIVEN[hints[name]]
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[name] = value
        else:
            before.append(value)
    return kind(*before, **named)


def test_all_are_known_here() -> None:
    public = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, Exception)]
    assert {one for one in public if not one.__name__.startswith("_")} <= set(ALL)
    assert len(ALL) > 30


@pytest.mark.parametrize("kind", ALL, ids=[kind.__name__ for kind in ALL])
def test_a_copy_is_as_the_error_is(kind: type[Exception]) -> None:
    error = made(kind)
    error.add_note("and a note")
    copies = [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for other in (*copies, copy.copy(error), copy.deepcopy(error)):
        assert type(other) is kind
        assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))


class OfTheUsers(errors.Unrecoverable):
    def __init__(self, *, card: str) -> None:
        super().__init__(f"card {card[-4:]} was refused")
        self.card = card


def test_so_is_one_of_a_class_of_the_users() -> None:
    other = pickle.loads(pickle.dumps(OfTheUsers(card="4111 1111")))
    assert (str(other), other.card) == ("card 1111 was refused", "4111 1111")
