"""A mail provider to practise with. It is as unreliable as the real ones, and like these it knows idempotency keys."""

from __future__ import annotations

import random


class PostError(Exception):
    """The provider did not answer well. Whether the mail was sent, nobody can tell."""


class Post:
    """Takes mails.

    Args:
        refuses: the share of calls that fail before anything was sent.
        loses: the share of calls that fail afterwards.
        seed: for the same failures each time.
    """

    def __init__(self, *, refuses: float = 0.1, loses: float = 0.1, seed: int = 7) -> None:
        self._refuses = refuses
        self._loses = loses
        self._chance = random.Random(seed)
        self.mails: dict[str, str] = {}  # by idempotency key: to whom
        self.calls = 0

    async def send(self, reader: str, subject: str, *, idempotency_key: str) -> str:
        """Sends a mail, once for each key."""
        self.calls += 1
        if self._chance.random() < self._refuses:
            raise PostError("503, try again later")
        self.mails.setdefault(idempotency_key, reader)
        if self._chance.random() < self._loses:
            raise PostError("connection reset")  # the mail is on its way
        return f"mail-{len(self.mails)}"
