"""``manage.py check``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from echomq.integrations.django._app import get_app
from echomq.integrations.django._outbox import get_relay
from echomq.integrations.django._settings import faults

if TYPE_CHECKING:
    from django.apps import AppConfig


def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """All that is wrong in ``settings.ECHOMQ``."""
    found: list[checks.CheckMessage] = [checks.Error(text, id=f"echomq.{number}") for number, text in faults()]
    if found:
        return found
    try:
        app = get_app()
        get_relay()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="echomq.E005")]
    if app.connection.where == "embedded://memory":
        return [
            checks.Warning(
                "ECHOMQ['URL'] is embedded://memory, a server for one process alone: a worker would never see the jobs of a view",
                hint="Use redis://… or, for development, embedded://NAME.",
                id="echomq.W001",
            )
        ]
    return []
