"""``manage.py echomq_worker``."""

from __future__ import annotations

from collections.abc import Sequence

from echomq.integrations.django.management.commands._passing import TARGET, PassingOn


class Command(PassingOn):
    """Takes jobs and runs them, until SIGTERM or SIGINT: ``echomq worker`` for this project."""

    help = (
        "Take jobs and run them, until SIGTERM or SIGINT (Ctrl-C). Arguments and options are those of `echomq worker`."
    )

    def words(self, given: Sequence[str]) -> list[str]:
        """The words after ``echomq``."""
        return ["worker", f"{TARGET}:app", *given]
