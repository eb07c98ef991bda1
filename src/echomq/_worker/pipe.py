"""What goes through the pipe between a worker and a process of its own: frames, and errors as plain data.

Nothing that comes from a child is unpickled, and no code of an error's class runs while it is made again: what a handler
raises may be made to do harm.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from echomq._from_process import FromProcess, comes_from
from echomq._worker.outcome import UNREADABLE, printable, reason_of, trace_of

Frame: TypeAlias = Any
"""A list; its first element says what it is."""

SETUP, RUN, REPLY = 0, 1, 2
"""To a child: how it is to be set up; jobs, to be run one after the other; what a call of its has answered."""
READY, BROKEN, RETURNED, RAISED, CALL, LOG, DONE = 0, 1, 2, 3, 4, 5, 6
"""From a child: it takes jobs; it cannot; how a run has ended; a call for the job's sake; a record of a logger; it has run what
it might of its jobs."""

MOST_BYTES: Final = 512 * 1024 * 1024
"""Of one value. Servers take no more."""

_MOST_ARGUMENTS: Final = 64 * 1024
_MOST_LEAVES: Final = 100
_WE_READ: Final = ("after", "status")
"""Attributes that a worker looks at; there it must not run the code of a class that reckons them."""
_MARK: Final = 0xEC40
_HEAD: Final = struct.Struct("<HI")
"""A mark, so that what somebody else writes into the socket is not taken for a frame; and the length."""
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


def frame(*parts: Any) -> bytes:
    """A frame as it is sent."""
    body = _encode(parts)
    return _HEAD.pack(_MARK, len(body)) + body


def _length(head: bytes | bytearray, at: int = 0) -> int:
    mark, length = _HEAD.unpack_from(head, at)
    if mark != _MARK:
        raise ValueError("no frame begins there")
    return int(length)


class Frames:
    """Puts frames together from what is read, however it was cut."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def read(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole now."""
        self._rest += data
        at = 0
        while len(self._rest) - at >= _HEAD.size:
            end = at + _HEAD.size + _length(self._rest, at)
            if len(self._rest) < end:
                break
            found = _decode(bytes(memoryview(self._rest)[at + _HEAD.size : end]))
            at = end
            yield found
        if at:
            del self._rest[:at]


def read_frame(read: Any) -> Frame | None:
    """The next frame of a file; None at its end.

    Args:
        read: the file's ``read``.
    """
    head = read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    length = _length(head)
    body = read(length)
    return None if len(body) < length else _decode(body)


# -- errors ------------------------------------------------------------------------------------------------------------


class _Told(NamedTuple):
    """An error as plain data.

    Attributes:
        kinds: module and qualified name of its class and of its bases, the closest first.
        args, attributes: as far as they are plain.
        response_status: the ``status_code`` of its ``response``, if it has one.
        leaves: of a group, what it holds.
        reason, trace: as they are stored.
    """

    kinds: list[tuple[str, str]]
    args: bytes
    attributes: bytes
    response_status: int | None
    leaves: list[Any]
    reason: str
    trace: str


def told(error: BaseException, leaves: int = _MOST_LEAVES) -> Frame:
    """An error as plain data. Whatever the error's own code does, this does not raise."""
    kinds = [(_text(kind.__module__), _text(kind.__qualname__)) for kind in type.mro(type(error))[:-1]]
    try:
        inner: list[Any] = []
        if isinstance(error, BaseExceptionGroup) and leaves > 1:
            inner = [told(one, leaves // 2) for one in error.exceptions[:leaves]]
        plain = _args_of(error), _attributes_of(error), _response_status_of(error)
        return list(_Told(kinds, *plain, inner, reason_of(error), trace_of(error)))
    except BaseException:  # one that does harm when it is looked at
        return list(_Told(kinds, _encode([]), _encode({}), None, [], UNREADABLE, UNREADABLE))


def told_again(parts: Frame) -> BaseException:
    """The error, of the same class where that is known here; else of one that has its name and its nearest known base."""
    kinds, args, attributes, response_status, leaves, reason, trace = parts
    plain = _decode(attributes)
    if response_status is not None:
        plain["response"] = SimpleNamespace(status_code=response_status)
    try:
        error = _made(_class_of(kinds), _decode(args), [told_again(one) for one in leaves])
    except Exception:  # its class is one that cannot be made anew here
        error = Exception(reason)
    comes_from(error, FromProcess(reason, trace), plain)
    return error


def _args_of(error: BaseException) -> bytes:
    try:
        if isinstance(error, BaseExceptionGroup):
            return _encode([_text(error.message)])
        args = list(error.args)
        if isinstance(error, OSError) and error.filename is not None and len(args) == 2:
            args.append(error.filename)
        written = _encode(args)
        if len(written) <= _MOST_ARGUMENTS:
            return written
    except BaseException:  # what is no plain data, or raises when it is looked at
        pass
    return _encode([reason_of(error)])


def _attributes_of(error: BaseException) -> bytes:
    plain: dict[str, Any] = {}
    size = 0
    try:
        for name, value in list(error.__dict__.items()):
            try:
                plain_value = value.total_seconds() if isinstance(value, timedelta) else value
                size += len(_encode(plain_value))
            except BaseException:  # as above
                continue
            if size <= _MOST_ARGUMENTS and isinstance(name, str):
                plain[_text(name)] = plain_value
        for name in _WE_READ:
            if name not in plain and (value := _number_of(error, name)) is not None:
                plain[name] = value
        return _encode(plain)
    except BaseException:  # as above
        return _encode({})


def _number_of(error: BaseException, name: str) -> float | None:
    try:
        value = getattr(error, name, None)
        number = value.total_seconds() if isinstance(value, timedelta) else value
        return number if type(number) in (int, float) and len(_encode(number)) < 10 else None
    except BaseException:  # as above
        return None


def _response_status_of(error: Any) -> int | None:
    try:
        status = getattr(getattr(error, "response", None), "status_code", None)  # what a RetryPolicy looks for
        return int(status) if isinstance(status, int) and 0 <= status < 1000 else None
    except BaseException:  # as above
        return None


def _class_of(kinds: list[Any]) -> type[BaseException]:
    unknown: list[tuple[str, str]] = []
    known: type[BaseException] = Exception
    for module, name in kinds:
        found = _known("__main__" if module == "__mp_main__" else module, name)
        # To make a class below one that has an `__init_subclass__` runs that.
        if found is not None and not (unknown and "__init_subclass__" in _names_of_users(found)):
            known = found
            break
        unknown.append((module, name))
    for module, name in reversed(unknown):
        known = type(name.rpartition(".")[2], (known,), {"__module__": module, "__qualname__": name})
    return known


def _known(module: str, name: str) -> type[BaseException] | None:
    """A class of errors that this process has, without importing anything for it."""
    found: Any = sys.modules.get(module)
    try:
        for part in name.split("."):
            found = vars(found)[part]
        if type(found) is not type or not issubclass(found, BaseException):
            return None
        # One whose attributes are got by code of its own cannot even be raised without running that.
        return None if _names_of_users(found) & {"__getattribute__", "__class__"} else found
    except Exception:  # there is no such thing, or it is something else here
        return None


def _names_of_users(kind: type) -> set[str]:
    """What its classes define, those of the interpreter apart."""
    return {name for one in kind.__mro__ if one.__module__ != "builtins" for name in vars(one)}


def _made(kind: type[BaseException], args: list[Any], leaves: list[BaseException]) -> BaseException:
    """An instance, without a step in code of a user's class."""
    base: Any = next(one for one in kind.__mro__ if one.__module__ == "builtins")
    arguments = (*args, leaves) if leaves else tuple(args)
    try:
        error: BaseException = base.__new__(kind, *arguments)
        base.__init__(error, *arguments)  # that of OSError sets errno, that of SystemExit its code
    except Exception:  # one that wants other arguments
        try:
            error = base.__new__(kind)
        except Exception:
            error = Exception.__new__(Exception)
    if not leaves and not issubclass(kind, OSError):
        BaseException.args.__set__(error, tuple(args))  # type: ignore[attr-defined]
    return error


def _text(text: Any) -> str:
    return printable(text) if isinstance(text, str) else ""
