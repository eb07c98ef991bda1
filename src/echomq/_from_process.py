"""Errors that a handler raised in a process of its own, made anew in the worker's: no code of their classes runs here."""

from __future__ import annotations

from typing import Any, Final

_cause_of: Final = vars(BaseException)["__cause__"].__get__
_set_cause: Final = vars(BaseException)["__cause__"].__set__
_dict_of: Final = vars(BaseException)["__dict__"].__get__


class FromProcess(Exception):
    """The cause of such an error: what is known of it there.

    Attributes:
        reason: as ``reason_of`` says it there.
        trace: as ``trace_of`` does.
    """

    def __init__(self, reason: str, trace: str) -> None:
        super().__init__(f"\n{trace}")
        self.reason = reason
        self.trace = trace


def from_process(error: BaseException) -> FromProcess | None:
    """What is known of an error that was raised in another process; None for any other."""
    cause = _cause_of(error)  # not by the error's own class, which may do what it likes
    return cause if type(cause) is FromProcess else None


def comes_from(error: BaseException, cause: FromProcess, attributes: dict[str, Any]) -> None:
    """Gives an error that was made anew its cause and its attributes."""
    _set_cause(error, cause)
    _dict_of(error).update(attributes)


def attribute(error: BaseException, name: str) -> Any:
    """An attribute of an error, None if it has none; from a process, only what has come along as plain data."""
    if from_process(error) is None:
        return getattr(error, name, None)
    return _dict_of(error).get(name)
