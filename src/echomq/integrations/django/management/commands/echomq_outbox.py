"""``manage.py echomq_outbox``."""

from __future__ import annotations

from collections.abc import Sequence

from echomq.integrations.django.management.commands._passing import TARGET, PassingOn


class Command(PassingOn):
    """Sends what the outbox holds, and looks at it: ``echomq outbox`` for this project."""

    help = "Send what the outbox holds, or look at it: relay, status, list, retry, discard, as of `echomq outbox`."

    def words(self, given: Sequence[str]) -> list[str]:
        """The words after ``echomq``."""
        if not given or given[0].startswith("-"):
            return ["outbox", *(given or ["--help"])]
        return ["outbox", given[0], f"{TARGET}:relay", *given[1:]]
