"""The names of a queue's keys. Nothing else builds one."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Final

from echomq.errors import InvalidOption
from echomq.options import check_queue_name

# The names that scripts use in their headers, where they differ from the key's own suffix.
_SUFFIXES = {
    "check_at": "stalled-check", "waiting_children": "waiting-children", "schedulers": "repeat",
    "metrics_completed": "metrics:completed", "metrics_failed": "metrics:failed",
}  # fmt: skip

_OURS = {
    "calls": "calls", "suspects": "suspects", "limits": "limits", "paused_schedulers": "paused-schedulers",
    "version_5": "v5", "healing": "healing", "standing": "standing",
    "workers": "workers",
    "rules": "rules", "cancels": "cancels", "outbox": "outbox", "forwarding": "forwarding",
    "sent": "sent",
}  # fmt: skip
"""Keys of our own: not under ``{prefix}:``, where other programs' maintenance would take them for jobs and delete them.

A key that there may be many of is called ``<one of these names>:<more>``."""

THEIRS: Final = (
    "wait", "paused", "active", "prioritized", "delayed", "waiting-children", "completed", "failed", "id", "pc", "meta",
    "events", "marker", "stalled", "stalled-check", "limiter", "repeat", "priority", "delay", "metrics:completed",
    "metrics:completed:data", "metrics:failed", "metrics:failed:data",
)  # fmt: skip
"""All others that a queue has once, by their suffixes (protocol 1.1): those of other runtimes and of old versions too."""

EXPIRING: Final = frozenset(
    {"calls", "suspects", "limits", "v5", "healing", "standing", "workers", "cancels", "forwarding", "sent"}
)
"""Those of our own that never stand without an expiry. The others hold what nobody but them knows."""

LEFT_BEHIND: Final = EXPIRING | {"paused-schedulers", "rules"}
"""Those that are good for nothing once their queue is no more. An outbox is none: its outcomes are still to be forwarded."""

_SLOTS = 16_384

_PLAIN = re.compile(r"[!-~]+")
_GLOB = re.compile(r"([\[\]*?\\])")


def literal(text: str) -> str:
    """What SCAN is to match for this text and nothing else."""
    return _GLOB.sub(r"\\\1", text)


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys of one queue (protocol 1.1), and what other programs call it.

    Attributes:
        queue: the name that the user gave.
        prefix: what all keys begin with.
        protocol_name: the name by which other BullMQ programs know the queue: with braces where ``hash_tag`` is on.
        hash_tag: whether the name stands in braces, so that a cluster keeps the queue's keys in one slot.
    """

    queue: str
    prefix: str
    hash_tag: bool
    protocol_name: str
    base: str
    own_base: str

    @classmethod
    def of(cls, queue: str, *, prefix: str = "emq", hash_tag: bool | None = None) -> QueueKeys:
        """Checks the names. ``hash_tag=None`` means on, but off for ``prefix="bull"``, which is BullMQ's own layout."""
        if not isinstance(prefix, str) or not prefix or "{" in prefix or "}" in prefix:
            raise InvalidOption(f"prefix={prefix!r}: must be a text that is not empty and has no braces")
        braces = prefix != "bull" if hash_tag is None else hash_tag
        check_queue_name(queue, hash_tag=braces)
        name = f"{{{queue}}}" if braces else queue
        return cls(queue, prefix, braces, name, f"{prefix}:{name}:", f"{prefix}x:{name}:")

    @property
    def dead_letters(self) -> QueueKeys:
        """Those of the queue of its dead letters: ``-dead`` after the braces, so that both are in one slot of a cluster."""
        name = f"{self.protocol_name}-dead"
        return QueueKeys(
            f"{self.queue}-dead", self.prefix, self.hash_tag, name, f"{self.prefix}:{name}:", f"{self.prefix}x:{name}:"
        )

    @classmethod
    def at(cls, base: str) -> QueueKeys:
        """Those of the queue whose keys begin so, whatever names its user gave."""
        prefix, _, name = base[:-1].rpartition(":")
        return cls(name, prefix, "{" in name, name, base, f"{prefix}x:{name}:")

    @property
    def slot(self) -> int | None:
        """The slot of a cluster in which all its keys are; None if they are in many."""
        tag = self.base.partition("{")[2].partition("}")[0]
        return binascii.crc_hqx(tag.encode(), 0) % _SLOTS if tag else None

    def key(self, suffix: str) -> str:
        """The key of this suffix."""
        return self.base + suffix

    def job(self, job_id: str) -> str:
        """The key of a job's hash."""
        return self.base + job_id

    @classmethod
    def pattern(cls, prefix: str) -> str:
        """What matches the ``meta`` key of every queue with this prefix, and perhaps of others (``queue_of``)."""
        return f"{literal(prefix)}:*:meta"

    @classmethod
    def queue_of(cls, meta: str, *, prefix: str, hash_tag: bool) -> str | None:
        """The queue whose ``meta`` key this is, by the name that ``of`` takes; None if it is that of no such queue."""
        name = meta.removeprefix(f"{prefix}:").removesuffix(":meta")
        if hash_tag:
            if name[:1] != "{" or name[-1:] != "}":
                return None
            name = name[1:-1]
        try:
            check_queue_name(name, hash_tag=hash_tag)
        except InvalidOption:
            return None
        return name

    def resolve(self, name: str) -> str:
        """The key that a script's header calls ``name``."""
        return self.own_base + _OURS[name] if name in _OURS else self.base + _SUFFIXES.get(name, name)

    @property
    def once(self) -> list[str]:
        """All keys that a queue has once, whether they are there or not: not those of its jobs, ids and schedules."""
        return [*map(self.key, THEIRS), *(self.own_base + suffix for suffix in _OURS.values())]

    def is_one_of_many(self, suffix: bytes) -> bool:
        """Whether what stands under ``own_base`` with this suffix is of a kind of ours that there may be many of."""
        kind, colon, _ = suffix.partition(b":")
        return colon != b"" and kind.decode("utf-8", "surrogateescape") in _OURS.values()

    def client_name(self, suffix: str = "") -> str | None:
        """The name of a connection, by which ``getWorkers`` of any runtime finds it (protocol 11.2).

        None if a server refuses such a name, for what the prefix holds: the connection then goes without.
        """
        if not _PLAIN.fullmatch(self.prefix):
            return None
        return f"{self.prefix}:{base64.b64encode(self.protocol_name.encode()).decode()}{suffix}"

    @property
    def bare_client_name(self) -> str:
        """What BullMQ for Python calls both connections of a worker: the same without base64."""
        return f"{self.prefix}:{self.protocol_name}"
