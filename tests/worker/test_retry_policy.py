"""Which errors are worth another attempt."""

from __future__ import annotations

import asyncio
import socket
import urllib.error
from collections.abc import Callable
from email.message import Message
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import msgspec
import pydantic
import pytest

from echomq import InvalidOption, RetryPolicy, Unrecoverable


def http(status: Any) -> Exception:
    """As requests and httpx raise it."""
    error = Exception(f"status {status}")
    error.response = SimpleNamespace(status_code=status)  # type: ignore[attr-defined]
    return error


def with_status(status: Any) -> Exception:
    """As aiohttp raises it."""
    error = Exception(f"status {status}")
    error.status = status  # type: ignore[attr-defined]
    return error


def urllib_http(code: int) -> Exception:
    return urllib.error.HTTPError("http://x", code, "no", Message(), None)


def named(module: str, name: str) -> Exception:
    """An error of a library that is not there."""
    made: Exception = type(name, (Exception,), {"__module__": module})("no")
    return made


def invalid_struct() -> Exception:
    try:
        msgspec.convert("x", int)
    except msgspec.ValidationError as error:
        return error
    raise AssertionError


def invalid_model() -> Exception:
    try:
        pydantic.TypeAdapter(int).validate_python("x")
    except pydantic.ValidationError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionResetError(), "transient"),
        (BrokenPipeError(), "transient"),
        (TimeoutError(), "transient"),
        (socket.gaierror(), "transient"),
        (urllib.error.URLError("no route"), "transient"),
        (named("httpx", "TransportError"), "transient"),
        (named("requests.exceptions", "Timeout"), "transient"),
        *(
            (made(status), "transient")
            for made in (http, with_status, urllib_http)
            for status in (408, 425, 429, 500, 503)
        ),
        *(
            (made(status), "permanent")
            for made in (http, with_status, urllib_http)
            for status in (400, 401, 404, 410, 422)
        ),
        (http(HTTPStatus.NOT_FOUND), "permanent"),
        (invalid_struct(), "permanent"),
        (invalid_model(), "permanent"),
        (Unrecoverable("no"), "permanent"),
        (ValueError("no"), "unknown"),
        (FileNotFoundError(), "unknown"),
        (http(200), "unknown"),
        (http("404"), "unknown"),
        (http(True), "unknown"),
        (with_status(print), "unknown"),  # no number, but something to call
        (SystemExit(404), "unknown"),
        (asyncio.CancelledError(), "unknown"),
    ],
    ids=repr,
)
def test_by_our_own_rules(error: BaseException, kind: str) -> None:
    assert RetryPolicy.DEFAULT.kind(error) == kind
    assert RetryPolicy.ALWAYS.kind(error) == "unknown"


def test_the_closest_class_that_is_named_decides() -> None:
    policy = RetryPolicy(transient=(LookupError, "builtins.FileNotFoundError"), permanent=(KeyError, OSError))
    found = [policy.kind(error) for error in (IndexError(), KeyError(), FileNotFoundError(), PermissionError())]
    assert found == ["transient", "permanent", "transient", "permanent"]
    assert policy.kind(ConnectionError()) == "permanent"  # an OSError, and named before our own rules
    assert policy.kind(http(503)) == "transient"


def test_of_a_group_all_must_be_permanent() -> None:
    kind = RetryPolicy.DEFAULT.kind
    permanent, transient, unknown = http(404), TimeoutError(), ValueError()
    assert kind(ExceptionGroup("", [permanent, invalid_struct()])) == "permanent"
    assert kind(ExceptionGroup("", [permanent, ExceptionGroup("", [Unrecoverable()])])) == "permanent"
    assert kind(ExceptionGroup("", [permanent, transient])) == "transient"
    assert kind(ExceptionGroup("", [permanent, unknown])) == "unknown"
    assert kind(BaseExceptionGroup("", [unknown, ExceptionGroup("", [transient])])) == "transient"
    assert RetryPolicy(permanent=(ExceptionGroup,)).kind(ExceptionGroup("", [transient])) == "permanent"
    assert kind(ExceptionGroup("", [permanent] * 5000)) == "unknown"
    deep: Exception = permanent
    for _ in range(500):
        deep = ExceptionGroup("", [deep])
    assert kind(deep) == "permanent"


class Raises:
    def __get__(self, instance: object, owner: type) -> Any:
        raise SystemExit("from a property")


class HostileProperty(Exception):
    response = Raises()


class HostileAttributes(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise KeyboardInterrupt


class HostileEquality(int):
    def __ge__(self, other: object) -> bool:
        raise RuntimeError

    def __le__(self, other: object) -> bool:
        raise RuntimeError


class HostileMeta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)


class HostileClass(Exception, metaclass=HostileMeta):
    pass


class HostileGroup(ExceptionGroup[Exception]):
    exceptions = ()


HOSTILE: dict[str, Callable[[], BaseException]] = {
    "property": HostileProperty,
    "attributes": HostileAttributes,
    "equality": lambda: with_status(HostileEquality(404)),
    "class": HostileClass,
    "group": lambda: HostileGroup("", [OSError()]),
}
"""Made where they are needed: pytest itself cannot hold one."""


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_an_error_does_it_is_judged(name: str) -> None:
    for policy in (RetryPolicy.DEFAULT, RetryPolicy(permanent=(KeyError,)), RetryPolicy.ALWAYS):
        assert policy.kind(HOSTILE[name]()) == "unknown"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"permanent": KeyError},
            r"permanent=<class 'KeyError'>: must be a tuple of exceptions, such as \(KeyError,\)",
        ),
        ({"permanent": (int,)}, "permanent: <class 'int'> must be a class of exceptions, or its name with its module"),
        (
            {"transient": ("Timeout",)},
            "transient: 'Timeout' must be a class of exceptions, or its name with its module",
        ),
        ({"transient": ("a..b",)}, "transient: 'a..b' must be"),
        (
            {"transient": (KeyError,), "permanent": ("builtins.KeyError",)},
            "is both transient and permanent: name it once",
        ),
        ({"defaults": 1}, "defaults=1: must be True or False"),
    ],
)
def test_wrong_policies_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        RetryPolicy(**options)
