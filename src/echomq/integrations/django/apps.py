"""EchoMQ as a Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks
from django.utils.module_loading import autodiscover_modules

from echomq.integrations.django._settings import Settings, faults


class EchoMQConfig(AppConfig):
    """Registers the checks, and imports the modules of the installed apps that hold tasks."""

    name = "echomq.integrations.django"
    label = "echomq"
    verbose_name: str = "EchoMQ"
    default_auto_field: str = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Called by Django when all apps are loaded."""
        from echomq.integrations.django import _checks

        checks.register(_checks.check_settings)
        if not list(faults()):  # `manage.py check` says them all
            module = Settings.read().tasks_module
            if module is not None:
                autodiscover_modules(module)
