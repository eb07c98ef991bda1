"""What server is this, and can EchoMQ use it?"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echomq.errors import EchoMQError, ServerError, ServerUnavailable, UnsupportedServer

if TYPE_CHECKING:
    from echomq._redis.client import Link
    from echomq._redis.wire import Reply

_OLDEST = (6, 2, 0)
_SECTIONS = ("server", "memory", "replication", "cluster")
_logger = logging.getLogger("echomq")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What the server says about itself. What it does not let us read is None.

    Attributes:
        version: of the product itself, such as (7, 0, 15) for Redis or (9, 1, 2) for Valkey.
        role: ``master``, or ``slave`` for a replica.
        cluster: whether the server is a node of a cluster.
        maxmemory_policy: what happens when its memory is full.
    """

    version: tuple[int, ...] | None = None
    role: str | None = None
    cluster: bool | None = None
    maxmemory_policy: str | None = None


async def check(link: Link, *, hash_tag: bool) -> ServerInfo:
    """Ask the server what it is, and refuse one that cannot be used. Uses ``INFO`` only; a user without it passes.

    Args:
        link: the connection to ask on.
        hash_tag: whether all keys of a queue share one hash slot, which a cluster needs.

    Raises:
        UnsupportedServer: too old, or a cluster without hash tags; says what to do.
        ServerUnavailable: a replica. The link is dropped: after a failover the same address may lead to the primary.
    """
    replies = await link.call_many([("INFO", section) for section in _SECTIONS])
    facts: dict[str, str] = {}
    for reply in replies:
        facts |= _parsed(reply)
    info = _described(facts)
    where = link.settings.where
    if info.version is not None and _compatible_version(facts) < _OLDEST:
        raise UnsupportedServer(
            f"{where} runs version {_dotted(info.version)}, EchoMQ needs Redis {_dotted(_OLDEST)} or Valkey 7.2 at "
            "least: upgrade the server"
        )
    if info.cluster and not hash_tag:
        raise UnsupportedServer(
            f"{where} is a node of a cluster, where all keys of a queue must lie in one slot, but hash_tag is off: "
            "use hash_tag=True (the default of the prefix 'emq'), or a server that is not in cluster mode"
        )
    if info.role == "slave":
        link.drop("the server is a replica")
        raise ServerUnavailable(
            f"{where} is a replica of {facts.get('master_host')}:{facts.get('master_port')} and takes no writes: "
            "use the address of the primary"
        )
    if info.maxmemory_policy not in (None, "noeviction"):
        _logger.warning(
            "%s has maxmemory-policy %s: when memory is full it deletes keys, jobs among them; set it to noeviction",
            where,
            info.maxmemory_policy,
        )
    return info


def _parsed(reply: Reply | EchoMQError) -> dict[str, str]:
    if isinstance(reply, ServerError) and reply.code == "NOPERM":
        return {}
    if isinstance(reply, EchoMQError):
        raise reply
    if not isinstance(reply, bytes):
        return {}
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def _described(facts: dict[str, str]) -> ServerInfo:
    cluster = facts.get("cluster_enabled")
    return ServerInfo(
        version=_version(facts.get("valkey_version") or facts.get("redis_version", "")),
        role=facts.get("role"),
        cluster=None if cluster is None else cluster == "1",
        maxmemory_policy=facts.get("maxmemory_policy"),
    )


def _compatible_version(facts: dict[str, str]) -> tuple[int, ...]:
    # Valkey says in redis_version which Redis it can stand in for.
    return _version(facts.get("redis_version", "")) or _OLDEST


def _version(text: str) -> tuple[int, ...] | None:
    numbers = text.split("-")[0].split(".")
    return tuple(map(int, numbers)) if all(number.isdigit() for number in numbers) else None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
