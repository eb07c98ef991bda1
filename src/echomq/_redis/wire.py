"""The wire: commands packed, replies parsed, and which error answers mean "not now".

Errors are values here (``hiredis`` builds a ``ServerError`` for each), so that one bad answer never disturbs the
answers behind it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

import hiredis

from echomq.errors import EncodingError, ServerError

Argument: TypeAlias = bytes | str | int | float
Reply: TypeAlias = "bytes | int | list[Reply] | ServerError | None"
"""What the server answers. An error that stands inside a list stays there, as a ``ServerError``."""

INCOMPLETE: Final = object()
"""What a reader gives when the rest of a reply has not arrived yet."""

_MAX_ARGUMENTS = 1024 * 1024
_MAX_ARGUMENT_BYTES = 512 * 1024 * 1024
_MAX_COMMAND_BYTES = 1024 * 1024 * 1024

# The command was refused before it did anything, and another connection or a later moment may serve it. OOM is not
# one of them: a script may meet it half-way.
_NOT_NOW = frozenset({"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "UNBLOCKED", "NOREPLICAS", "MISCONF", "BUSY"})
_TOO_MANY_CLIENTS = "ERR max number of clients"
# Redis 6.2 wraps what a command inside a script answered: "ERR Error running script (call to f_…): …: -READONLY You …".
_WRAPPED_BY_SCRIPT = re.compile(r"ERR Error running script .*?: -(?P<code>[A-Z]+) ")


def new_reader() -> hiredis.Reader:
    """A parser for one connection: bytes stay bytes, errors are values, bad input raises ``hiredis.ProtocolError``."""
    return hiredis.Reader(protocolError=hiredis.ProtocolError, replyError=ServerError, notEnoughData=INCOMPLETE)


def pack(command: Sequence[Argument]) -> bytes:
    """The bytes of one command.

    Raises:
        TypeError: an argument is not ``bytes``, ``str``, ``int`` or ``float`` (a ``bool`` is refused too).
        EncodingError: text that is not valid Unicode, or more than a server takes.
    """
    if not command:
        raise TypeError("a command needs at least its name, got no argument")
    if len(command) > _MAX_ARGUMENTS:
        raise EncodingError(
            f"{command[0]!r} has {len(command)} arguments, a server takes {_MAX_ARGUMENTS}: send it in smaller parts",
            path="arguments",
        )
    try:
        packed: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its stub says: one element
    except (TypeError, UnicodeEncodeError) as error:
        raise _explained(command, error) from None
    if len(packed) > _MAX_ARGUMENT_BYTES:
        _refuse_oversize(command, len(packed))
    return packed


class Head:
    """The beginning of many commands, packed once.

    Args:
        args: the command's name and its first arguments.
    """

    __slots__ = ("_packed", "args")

    def __init__(self, *args: Argument) -> None:
        self.args = args
        self._packed = _behind_count(pack(args))

    def pack_with(self, args: Sequence[Argument]) -> bytes:
        """The bytes of the command with these further arguments, of which there is one at least. Raises what ``pack`` raises."""
        count = len(self.args) + len(args)
        if count <= _MAX_ARGUMENTS:
            try:
                packed: bytes = hiredis.pack_command(tuple(args))  # type: ignore[arg-type]  # as above
            except (TypeError, UnicodeEncodeError):
                pass  # it is explained below
            else:
                if len(packed) + len(self._packed) <= _MAX_ARGUMENT_BYTES:
                    return b"*%d\r\n%b%b" % (count, self._packed, _behind_count(packed))
        return pack((*self.args, *args))


def _behind_count(packed: bytes) -> bytes:
    return packed[packed.index(b"\n") + 1 :]


def refused_for_now(error: ServerError) -> bool:
    """Whether the answer proves that the command did not run, and a later try or another server may serve it."""
    return code_of(error) in _NOT_NOW or str(error).startswith(_TOO_MANY_CLIENTS)


def code_of(error: ServerError) -> str:
    """The code of an answer: where a script has wrapped what a command inside it was answered, the code of that."""
    wrapped = _WRAPPED_BY_SCRIPT.match(str(error)) if error.code == "ERR" else None
    return error.code if wrapped is None else wrapped["code"]


def _explained(command: Sequence[Argument], error: TypeError | UnicodeEncodeError) -> TypeError | EncodingError:
    for position, argument in enumerate(command):
        if isinstance(argument, str) and isinstance(error, UnicodeEncodeError):
            try:
                argument.encode()
            except UnicodeEncodeError as reason:
                return EncodingError(
                    f"argument {position} of {command[0]!r} is not valid Unicode text ({reason.reason} at character "
                    f"{reason.start}): replace it, or pass bytes",
                    path=f"arguments[{position}]",
                )
        elif type(argument) not in (bytes, str, int, float):
            return TypeError(
                f"argument {position} of {command[0]!r} is {type(argument).__name__}: only bytes, str, int and float "
                "can be sent, convert it first"
            )
    return TypeError(f"{command[0]!r} cannot be sent: {error}")


def _refuse_oversize(command: Sequence[Argument], size: int) -> None:
    for position, argument in enumerate(command):
        if isinstance(argument, (bytes, str)) and len(argument) > _MAX_ARGUMENT_BYTES:
            raise EncodingError(
                f"argument {position} of {command[0]!r} is longer than {_MAX_ARGUMENT_BYTES} bytes, the most that a "
                "server takes: store it elsewhere and send where it is",
                path=f"arguments[{position}]",
            )
    if size > _MAX_COMMAND_BYTES:
        raise EncodingError(
            f"{command[0]!r} is {size} bytes long, a server takes {_MAX_COMMAND_BYTES}: send it in smaller parts",
            path="arguments",
        )
