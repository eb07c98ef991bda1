"""Annotated types: values and JSON made into them, by msgspec, and by pydantic where a type is pydantic's own.

Pydantic is never imported here: its types are known by what they carry, and bring their own module.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

_AT: Final = re.compile(r"(?P<reason>.*) - at `(?:key` in `)?\$(?P<path>.*)`", re.DOTALL)
_STEP: Final = re.compile(r"\.\w+|\[\d+\]|\[\.\.\.\]")
_VALUE: Final = re.compile(r"(?<=^Invalid value) .*|(?<=^Invalid enum value) .*", re.DOTALL)
"""Which msgspec names in some reasons: that is for the caller to show, or not."""

_SOME: Final = "[...]"
_WHOLE: Final = re.compile(r"-?[1-9][0-9]{15,}")
_EXACT: Final = 2**53
_PLAIN: Final = frozenset({int, str, bool, float})
_MOST_ERRORS: Final = 3
_OF_JSON: Final = re.compile(r"(?<=got `)object(?=`)|(?<=[` ])(?:array|null)(?=[` ])")
_IN_PYTHON: Final = {"object": "dict", "array": "list", "null": "None"}
"""msgspec has JSON's names for what stands there; an expected object may be a class's."""


class Misfit(ValueError):
    """A value is not of the annotated type.

    Attributes:
        path: where in the value, such as ``.rooms[0].seats``; empty for the value itself.
        reason: what was expected there.
        found: what stands there.
    """

    def __init__(self, path: str, reason: str, found: Any) -> None:
        super().__init__(f"{reason} - at `{path}`" if path else reason)
        self.path = path
        self.reason = reason
        self.found = found


class Reader:
    """Makes values of one type out of what JSON has.

    Attributes:
        hint: the type, as it was annotated.
        plain: the Python type whose values fit as they are; None where there is no such.
    """

    def __init__(self, hint: Any) -> None:
        self.hint = hint
        self.plain: type | None = hint if isinstance(hint, type) and hint in _PLAIN else None
        self._hint = _rewritten(hint)
        self._is_whole = hint is int or hint == int | None

    def convert(self, value: Any) -> Any:
        """A value that was read from JSON, or could be written as JSON, as one of this type.

        Raises:
            Misfit: it is none.
        """
        try:
            return self._made(value)
        except msgspec.ValidationError as error:
            if self._is_whole and (whole := _whole(value)) is not None:
                return whole
            raise self._explained(value, error) from None
        except NotImplementedError:  # a type inside of it that nobody knows: it is passed on as it came
            return value

    def decode(self, text: bytes, read: Callable[[bytes], Any]) -> Any:
        """JSON text as a value of this type; ``read`` reads what msgspec does not: lone surrogates, for one.

        Raises:
            Misfit: it is none. ValueError: the text is no JSON.
        """
        try:
            return self._decoder.decode(text)
        except (msgspec.DecodeError, RecursionError, NotImplementedError):  # ValidationError is one
            return self.convert(read(text))

    @functools.cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self._hint, dec_hook=_by_pydantic)

    def _made(self, value: Any) -> Any:
        return msgspec.convert(value, self._hint, str_keys=True, dec_hook=_by_pydantic)

    def _explained(self, value: Any, error: msgspec.ValidationError) -> Misfit:
        """Where it is. Of an item of a mapping msgspec says only that it is some: which, is found by halves."""
        told, reason = _parts_of(error)
        place: list[str] = []  # the names of the way so far, as far as they are known
        while len(place) < len(told):
            step = told[len(place)]
            if step == _SOME:
                found = self._tried(value, place, told)
                if found is None:
                    break
                step, value, told, reason = found
            place.append(step)
        place += told[len(place) :]
        return Misfit("".join(place), reason, _found(value, place))

    def _tried(self, value: Any, place: list[str], told: list[str]) -> tuple[str, Any, list[str], str] | None:
        mapping = _found(value, place)
        if not isinstance(mapping, dict):
            return None
        until = len(place) + 1
        items = list(mapping.items())
        while items:  # the first that does not fit is in the first half, or else in the second
            some = items[: (len(items) + 1) // 2]
            alone = _with(value, place, dict(some))
            try:
                self._made(alone)
            except msgspec.ValidationError as error:
                again, reason = _parts_of(error)
                if again[:until] == told[:until]:
                    if len(some) == 1:
                        return _named(some[0][0]), alone, again, reason
                    items = some
                    continue
            items = items[len(some) :]
        return None


def reader(hint: Any) -> Reader | None:
    """What makes values of this type; None if nobody can, or any value is one."""
    try:
        return _reader(hint)
    except TypeError:  # an unhashable annotation
        return None


@functools.lru_cache(maxsize=1024)
def _reader(hint: Any) -> Reader | None:
    if hint is Any:
        return None
    made = Reader(hint)
    try:
        made._made(None)
    except msgspec.ValidationError:
        return made
    except Exception:  # msgspec has several ways to say that it does not know a type
        return None
    return made


def plain_scalar(value: Any) -> Any:
    """Subclasses of text and numbers, which msgspec leaves to us, and models of pydantic: as what JSON has."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):  # which may only be a key
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if is_model(value):
        _check_no_secrets(value)
        return value.model_dump(mode="json", by_alias=True)
    raise NotImplementedError


def is_model(value: Any) -> bool:
    """Whether a value is a model of pydantic."""
    return hasattr(type(value), "__pydantic_validator__") and hasattr(value, "model_dump")


def parts_of_model(value: Any) -> Iterator[tuple[str, Any]]:
    """A model's fields and what is written of each; models and secrets as they are."""
    written = value.model_dump(mode="json")
    for name in type(value).model_fields:
        item = getattr(value, name, None)
        yield name, item if is_model(item) or _hides(item) else written.get(name)


def _check_no_secrets(value: Any) -> None:
    kind: Any = type(value)
    if _may_hide(kind) and _hides([getattr(value, name, None) for name in kind.model_fields]):
        raise TypeError(f"{kind.__name__} holds a secret, which pydantic writes as stars")


@functools.lru_cache(maxsize=1024)
def _may_hide(kind: Any) -> bool:
    """Whether the annotations of a model name a secret, so that its values have to be looked at."""
    seen: set[Any] = set()
    todo: list[Any] = [kind]
    while todo:
        hint = todo.pop()
        if isinstance(hint, type) and hint not in seen:
            seen.add(hint)
            if hasattr(hint, "get_secret_value"):
                return True
            todo += [field.annotation for field in getattr(hint, "model_fields", {}).values()]
        todo += typing.get_args(hint)
    return False


def _hides(value: Any) -> bool:
    if is_model(value):
        return any(_hides(getattr(value, name, None)) for name in type(value).model_fields)
    if isinstance(value, dict):
        return any(map(_hides, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(_hides, value))
    return _is_secret(value)


def _is_secret(value: Any) -> bool:
    return hasattr(type(value), "get_secret_value")


# -- pydantic ----------------------------------------------------------------------------------------------------------


def _is_pydantic(hint: Any) -> bool:
    """Whether pydantic alone knows this type, not only types inside of it."""
    if typing.get_origin(hint) is typing.Annotated:
        return any(type(more).__module__.split(".")[0] == "pydantic" for more in hint.__metadata__)
    return isinstance(hint, type) and (
        hasattr(hint, "__pydantic_validator__") or hasattr(hint, "__get_pydantic_core_schema__")
    )


def _has_pydantic(hint: Any) -> bool:
    return _is_pydantic(hint) or any(_has_pydantic(part) for part in typing.get_args(hint))


def _rewritten(hint: Any) -> Any:
    """The type with what only pydantic can make put behind types that msgspec hands back to us."""
    if "pydantic" not in sys.modules or not _has_pydantic(hint):
        return hint
    if _is_pydantic(hint):
        return _behind(hint)
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return hint if _is_optional(parts) and not _has_adapted(parts) else _behind_or_none(hint, parts)
    if origin is typing.Annotated:
        return typing.Annotated[(_rewritten(parts[0]), *parts[1:])]
    made = tuple(_rewritten(part) for part in parts)
    return hint.copy_with(made) if hasattr(hint, "copy_with") else origin[made]


def _is_optional(parts: tuple[Any, ...]) -> bool:
    return len(parts) == 2 and type(None) in parts


def _has_adapted(parts: tuple[Any, ...]) -> bool:
    return any(_has_pydantic(part) for part in parts)


def _behind_or_none(hint: Any, parts: tuple[Any, ...]) -> Any:
    if _is_optional(parts):
        [inner] = [part for part in parts if part is not type(None)]
        return typing.Optional[_rewritten(inner)]  # noqa: UP045 - of a type that is known at run time only
    return _behind(hint)


class _Whatever(type):
    """Of types whose values have been checked already: msgspec asks whether they are of the type that it has."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class _Behind(metaclass=_Whatever):
    """Base of the types that stand for one of pydantic's."""

    adapter: Any


@functools.lru_cache(maxsize=1024)
def _behind(hint: Any) -> Any:
    return _Whatever("Behind", (_Behind,), {"adapter": _adapter(hint)})


@functools.lru_cache(maxsize=1024)
def _adapter(hint: Any) -> Any:
    return sys.modules["pydantic"].TypeAdapter(hint)


def _by_pydantic(kind: type, value: Any) -> Any:
    """What msgspec does not know. It gives a misfit its place in the whole."""
    known: Any = kind
    adapter = known.adapter if issubclass(kind, _Behind) else _adapter(known) if _is_pydantic(known) else None
    if adapter is None:
        return _scalar(kind, value)
    try:
        return adapter.validate_json(_text(value))
    except ValueError as error:
        told = getattr(error, "errors", None)
        if told is None:
            raise
        raise _Told(told(include_url=False, include_context=False, include_input=False)) from None


def _scalar(kind: type, value: Any) -> Any:
    """Subclasses of text and numbers."""
    for base in (str, int, float):
        if issubclass(kind, base) and type(value) is base:
            return kind(value)
    raise NotImplementedError


def _text(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=plain_scalar)


class _Told(ValueError):
    """What pydantic found."""

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        first, *others = errors
        self.steps = [_step(part) for part in first["loc"]]
        more = "".join(f"; {''.join(map(_step, other['loc']))}: {other['msg']}" for other in others[: _MOST_ERRORS - 1])
        self.reason = first["msg"] + more
        super().__init__(self.reason)


def _step(part: str | int) -> str:
    return f"[{part}]" if isinstance(part, int) else _named(part)


# -- what msgspec says -------------------------------------------------------------------------------------------------


def _parts_of(error: msgspec.ValidationError) -> tuple[list[str], str]:
    """Where, step by step, and why."""
    found = _AT.fullmatch(str(error))
    path, reason = (found["path"], found["reason"]) if found else ("", str(error))
    reason = _VALUE.sub("", reason)
    steps = _STEP.findall(path)
    if isinstance(error.__cause__, _Told):
        return steps + error.__cause__.steps, error.__cause__.reason
    return steps, _OF_JSON.sub(lambda name: _IN_PYTHON[name[0]], reason)


def _named(key: object) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def _key(step: str) -> Any:
    return step[1:] if step.startswith(".") else ast.literal_eval(step[1:-1])


def _found(value: Any, steps: list[str]) -> Any:
    """What stands at the end of these steps; None where nothing does."""
    for step in steps:
        try:
            value = value[_key(step)]
        except (TypeError, KeyError, IndexError, ValueError, SyntaxError):
            return None
    return value


def _with(value: Any, steps: list[str], instead: Any) -> Any:
    """A copy of the value with something else at the end of these steps; the rest of it is shared."""
    if not steps:
        return instead
    key = _key(steps[0])
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = _with(value[key], steps[1:], instead)
    return copy


def _whole(value: Any) -> int | None:
    """A whole number as text, if it is one that JavaScript can only write so: its own numbers are exact up to 2**53."""
    if isinstance(value, str) and _WHOLE.fullmatch(value) and len(value) <= 4000 and abs(int(value)) > _EXACT:
        return int(value)
    return None
