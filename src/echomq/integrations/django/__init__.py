"""EchoMQ in a Django project: settings, tasks of apps, jobs of a transaction, ``manage.py`` commands, ``django.tasks``.

    INSTALLED_APPS = [..., "echomq.integrations.django"]
    ECHOMQ = {"URL": "redis://localhost:6379/0"}

``docs/django.md`` has the whole of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from echomq.integrations.django._app import get_app
from echomq.integrations.django._commit import enqueue_in_transaction, enqueue_on_commit
from echomq.integrations.django._outbox import get_outbox, get_relay

if TYPE_CHECKING:
    from echomq.integrations.django.backend import EchoMQBackend

__all__ = [
    "EchoMQBackend",
    "enqueue_in_transaction",
    "enqueue_on_commit",
    "get_app",
    "get_outbox",
    "get_relay",
]


def __getattr__(name: str) -> Any:
    # Django names the backend by this module, which a project without any backend imports too.
    if name == "EchoMQBackend":
        from echomq.integrations.django.backend import EchoMQBackend

        return EchoMQBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
