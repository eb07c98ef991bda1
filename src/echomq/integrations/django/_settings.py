"""What stands in ``settings.ECHOMQ``."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

_NAME: Final = "ECHOMQ"


@dataclass(frozen=True)
class Settings:
    """The settings, with what was left out.

    Attributes:
        url: the server; None for ``ECHOMQ_URL`` of the environment.
        prefix, hash_tag: as of ``EchoMQ``.
        options: other arguments of ``EchoMQ``.
        tasks_module: the module of each installed app that holds its tasks; None for none.
        outbox_database: the alias of the database whose outbox this is.
        relay: arguments of ``Relay``.
    """

    url: str | None = None
    prefix: str = "emq"
    hash_tag: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    tasks_module: str | None = "tasks"
    outbox_database: str = "default"
    relay: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls) -> Settings:
        """As they are now.

        Raises:
            ImproperlyConfigured: something is no setting, or of the wrong kind; says all that is.
        """
        wrong = list(faults())
        if wrong:
            raise ImproperlyConfigured("; ".join(text for _, text in wrong))
        given: Mapping[str, Any] = getattr(settings, _NAME, {})
        return cls(**{name.lower(): value for name, value in given.items()})


_KINDS: Final[Mapping[str, tuple[type | tuple[type, ...], str]]] = {
    "URL": ((str, type(None)), "a text such as 'redis://localhost:6379/0', or None for ECHOMQ_URL of the environment"),
    "PREFIX": (str, "a text"),
    "HASH_TAG": ((bool, type(None)), "True, False or None"),
    "OPTIONS": (Mapping, "a dict of arguments of EchoMQ"),
    "TASKS_MODULE": ((str, type(None)), "the name of a module, or None for none"),
    "OUTBOX_DATABASE": (str, "an alias of DATABASES"),
    "RELAY": (Mapping, "a dict of arguments of echomq.outbox.Relay"),
}


def faults() -> Iterator[tuple[str, str]]:
    """What is wrong in ``settings.ECHOMQ``: the number of the check, and a text with value, rule and remedy."""
    given = getattr(settings, _NAME, {})
    if not isinstance(given, Mapping):
        yield "E001", f"{_NAME} = {given!r:.80}: must be a dict, such as {{'URL': 'redis://localhost:6379/0'}}"
        return
    for name, value in given.items():
        if name not in _KINDS:
            close = difflib.get_close_matches(str(name).upper(), _KINDS, n=1)
            remedy = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(_KINDS)}"
            yield "E002", f"{_NAME}[{name!r}]: is no setting of EchoMQ; {remedy}"
        elif not isinstance(value, _KINDS[name][0]):
            yield "E003", f"{_NAME}[{name!r}] = {value!r:.80}: must be {_KINDS[name][1]}"
    alias = given.get("OUTBOX_DATABASE", "default")
    if isinstance(alias, str) and alias not in settings.DATABASES and "OUTBOX_DATABASE" in given:
        known = ", ".join(map(repr, settings.DATABASES))
        yield "E004", f"{_NAME}['OUTBOX_DATABASE'] = {alias!r}: is no alias of DATABASES, which has: {known}"
