"""``echomq worker echomq.integrations.django.worker:app``: what ``manage.py echomq_worker`` runs, in each process.

Importing it sets Django up, as ``DJANGO_SETTINGS_MODULE`` says.
"""

from __future__ import annotations

import django
from django.apps import apps

from echomq.app import EchoMQ
from echomq.outbox import Relay

if not apps.ready:
    django.setup()

from echomq.integrations.django import get_app, get_relay

app: EchoMQ = get_app()
"""The project's app."""

relay: Relay = get_relay()
"""A relay of the project's outbox."""
