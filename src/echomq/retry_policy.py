"""``RetryPolicy``: which errors are worth another attempt."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal, TypeAlias

import msgspec

from echomq._from_process import attribute
from echomq.errors import InvalidOption
from echomq.options import shown

ErrorKind: TypeAlias = Literal["transient", "permanent", "unknown"]
"""What an error says about the next attempt: it may go better, it cannot, or nobody knows."""

ErrorType: TypeAlias = type[BaseException] | str
"""A class of errors, or its ``"module.Class"``, which need not be imported for it."""

_TRANSIENT: Final = frozenset(
    {
        "builtins.ConnectionError",
        "builtins.TimeoutError",
        "socket.gaierror",
        "urllib.error.URLError",
        "http.client.RemoteDisconnected",
        "http.client.IncompleteRead",
        "requests.exceptions.ConnectionError",
        "requests.exceptions.Timeout",
        "urllib3.exceptions.TimeoutError",
        "urllib3.exceptions.ProtocolError",
        "httpx.TransportError",
        "aiohttp.client_exceptions.ClientConnectionError",
        "aiohttp.client_exceptions.ClientPayloadError",
        "redis.exceptions.ConnectionError",
        "redis.exceptions.TimeoutError",
    }
)
_PERMANENT: Final = frozenset(
    {
        "echomq.errors.Unrecoverable",
        "msgspec.ValidationError",
        "pydantic_core._pydantic_core.ValidationError",
        "pydantic.error_wrappers.ValidationError",
        "pydantic.v1.error_wrappers.ValidationError",
    }
)
_exceptions_of: Final = vars(BaseExceptionGroup)["exceptions"].__get__
_URLLIB_HTTP: Final = "urllib.error.HTTPError"
_TRY_AGAIN: Final = frozenset({408, 425, 429})
_MOST_LEAVES: Final = 1_000
"""Errors of a group that are looked at; a group of more is not worth the time, and unknown."""


class RetryPolicy(msgspec.Struct, frozen=True):
    """Which errors of a handler are worth another attempt. It never gives a job more attempts than it has.

    An error that is ``permanent`` fails the job now. One that is ``transient`` or ``unknown`` leads to the next attempt, if
    there is one. What was decided is shown by ``Job.failure_kind``.

    Of an error's class and its bases the closest one that is named decides; then, with ``defaults``, the rules below. A group
    of exceptions that is not named itself is permanent if all that it holds is, and transient if anything in it is.

    Attributes:
        transient, permanent: classes of errors, or their names as ``"module.Class"``.
        defaults: whether errors that are named nowhere are judged by EchoMQ's own rules. Transient: errors of connections,
            timeouts, HTTP status 408, 425, 429 and from 500. Permanent: validation errors of msgspec and pydantic, and any
            other HTTP status from 400. The status is looked for in ``error.response.status_code`` (requests, httpx),
            ``error.status`` (aiohttp), and in ``code`` of ``urllib.error.HTTPError``.

    Raises:
        InvalidOption: something is no class of errors and no such name, or is named as both.

    Example:
        >>> policy = RetryPolicy(permanent=(KeyError, "stripe.CardError"))
        >>> policy.kind(KeyError("course"))
        'permanent'
    """

    transient: tuple[ErrorType, ...] = ()
    permanent: tuple[ErrorType, ...] = ()
    defaults: bool = True

    DEFAULT: ClassVar[RetryPolicy]
    """EchoMQ's own rules."""
    ALWAYS: ClassVar[RetryPolicy]
    """Any error is worth the attempts that are left."""

    def __post_init__(self) -> None:
        named: dict[str, str] = {}
        for option in ("transient", "permanent"):
            types = getattr(self, option)
            if not isinstance(types, tuple):
                raise InvalidOption(f"{option}={shown(types)}: must be a tuple of exceptions, such as (KeyError,)")
            for one in types:
                name = _checked(one, option)
                if named.setdefault(name, option) != option:
                    raise InvalidOption(f"{shown(one)} is both transient and permanent: name it once")
        if not isinstance(self.defaults, bool):
            raise InvalidOption(f"defaults={shown(self.defaults)}: must be True or False")

    def kind(self, error: BaseException) -> ErrorKind:
        """What this error says about the next attempt. Whatever the error's own code does, this does not raise."""
        try:
            return self._kind_of_all(error)
        except BaseException:  # a class that lies about itself, an attribute that raises
            return "unknown"

    def _kind_of_all(self, error: BaseException) -> ErrorKind:
        found: set[ErrorKind] = set()
        left, looked = [error], 0
        while left:
            one, looked = left.pop(), looked + 1
            if looked > _MOST_LEAVES:
                return "unknown"
            kind = self._named(one)
            if kind is None and issubclass(type(one), BaseExceptionGroup):
                left += _exceptions_of(one)  # not by code of its class
                continue
            found.add(kind or (_by_our_rules(one) if self.defaults else "unknown"))
        if found == {"permanent"}:
            return "permanent"
        return "transient" if "transient" in found else "unknown"

    def _named(self, error: BaseException) -> ErrorKind | None:
        if not (self.transient or self.permanent):
            return None
        for base in type(error).__mro__:
            name = _name_of(base)
            if base in self.transient or name in self.transient:
                return "transient"
            if base in self.permanent or name in self.permanent:
                return "permanent"
        return None


RetryPolicy.DEFAULT = RetryPolicy()
RetryPolicy.ALWAYS = RetryPolicy(defaults=False)


def _checked(one: Any, option: str) -> str:
    if isinstance(one, type) and issubclass(one, BaseException):
        return _name_of(one)
    if isinstance(one, str):
        module, _, name = one.rpartition(".")
        if name.isidentifier() and all(part.isidentifier() for part in module.split(".")):
            return one
    raise InvalidOption(
        f"{option}: {shown(one)} must be a class of exceptions, or its name with its module, such as 'stripe.CardError'"
    )


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _by_our_rules(error: BaseException) -> ErrorKind:
    names = [_name_of(base) for base in type(error).__mro__]
    status = _status_of(error, names)
    if status is not None:
        return "transient" if status in _TRY_AGAIN or status >= 500 else "permanent"
    for name in names:
        if name in _PERMANENT:
            return "permanent"
        if name in _TRANSIENT:
            return "transient"
    return "unknown"


def _status_of(error: Any, names: list[str]) -> int | None:
    """The HTTP status that an error carries, if it is one of failure."""
    candidates = [getattr(attribute(error, "response"), "status_code", None), attribute(error, "status")]
    if _URLLIB_HTTP in names:  # elsewhere `code` means anything
        candidates.append(attribute(error, "code"))
    for status in candidates:
        if isinstance(status, int) and not isinstance(status, bool) and 400 <= status <= 599:
            return int(status)
    return None
