"""How the server is: what the doctor says of it, whatever queues it has."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from echomq._lua.loader import scripts
from echomq._redis.client import Link
from echomq._redis.wire import Argument, Reply
from echomq.errors import ServerError
from echomq.findings import KINDS, Finding, ServerFacts

_NEARLY_FULL: Final = 0.9
_SKEW: Final = 2.0
_SLOW_US: Final = 20_000
_SLOW_ENTRIES: Final = 128
_RECENT: Final = 3600
_SECTIONS: Final = ("server", "memory", "persistence", "replication", "cluster")


class Checkup:
    """Looks at the server, on a connection of its own.

    Args:
        link: the connection.
        found: takes each finding.
        missed: takes what could not be looked at.
    """

    def __init__(self, link: Link, found: Callable[[Finding], None], missed: Callable[[str], None]) -> None:
        self._link = link
        self._found = found
        self._missed = missed

    async def examine(self) -> ServerFacts:
        """Looks at all of it. Raises ServerUnavailable, ConnectionLost."""
        info: dict[str, str] = {}
        for section in _SECTIONS:
            info |= _parsed(await self._ask(f"INFO {section}", "INFO", section))
        now = datetime.now(UTC)
        ahead = await self._clock()
        self._memory(info)
        await self._persistence(info)
        if info.get("role") == "slave":
            self._tell("replica", f"it is a replica of {info.get('master_host')}:{info.get('master_port')}")
        if info.get("cluster_enabled") == "1":
            cluster = _parsed(await self._ask("CLUSTER INFO", "CLUSTER", "INFO"))
            if cluster.get("cluster_state", "ok") != "ok":
                self._tell("cluster-down", f"the cluster's state is {cluster['cluster_state']}")
        await self._slow_scripts()
        return ServerFacts(
            product=_product(info),
            role={"master": "primary", "slave": "replica"}.get(info.get("role", "")),
            used_memory=_whole(info.get("used_memory")),
            max_memory=_whole(info.get("maxmemory")),
            policy=info.get("maxmemory_policy"),
            append_only=None if "aof_enabled" not in info else info["aof_enabled"] == "1",
            clock_ahead=ahead,
            read_at=now,
        )

    def _tell(self, kind: str, text: str) -> None:
        severity, fixable, remedy = KINDS[kind]
        self._found(Finding(kind, severity, "", self._link.settings.where, text, remedy, fixable))

    async def _ask(self, what: str, *command: Argument) -> Reply:
        try:
            return await self._link.call(*command)
        except ServerError as error:  # NOPERM; a command that was renamed
            self._missed(f"server: {what}: {error}")
            return None

    async def _clock(self) -> float | None:
        began, ours = time.perf_counter(), time.time()
        reply = await self._ask("TIME", "TIME")
        took = time.perf_counter() - began
        if not isinstance(reply, list):
            return None
        seconds, micros = reply
        ahead = int(seconds) + int(micros) / 1e6 - (ours + took / 2)  # type: ignore[arg-type]
        if abs(ahead) > _SKEW + took:
            way = "ahead of" if ahead > 0 else "behind"
            self._tell("clock-skew", f"its clock is {abs(ahead):.1f} s {way} the one of this machine")
        return ahead

    def _memory(self, info: dict[str, str]) -> None:
        policy = info.get("maxmemory_policy")
        if policy not in (None, "noeviction"):
            self._tell("eviction-policy", f"maxmemory-policy is {policy}: when memory is full, jobs are deleted")
        used, most = _whole(info.get("used_memory")), _whole(info.get("maxmemory"))
        if used and most and used > most * _NEARLY_FULL:
            self._tell("memory-nearly-full", f"{used / most:.0%} of maxmemory are used ({used:,} of {most:,} bytes)")

    async def _persistence(self, info: dict[str, str]) -> None:
        if info.get("aof_enabled") != "0":
            return
        reply = await self._ask("CONFIG GET save", "CONFIG", "GET", "save")
        if isinstance(reply, list) and len(reply) == 2 and not reply[1]:
            self._tell("no-persistence", "it writes nothing to disk: when it ends, all jobs are gone")
        else:
            self._tell(
                "no-append-only-file", "it writes snapshots only: when it dies, the jobs since the last one are gone"
            )

    async def _slow_scripts(self) -> None:
        reply = await self._ask("SLOWLOG GET", "SLOWLOG", "GET", str(_SLOW_ENTRIES))
        clock = await self._ask("TIME", "TIME")
        if not isinstance(reply, list) or not isinstance(clock, list):
            return
        since = int(clock[0]) - _RECENT  # type: ignore[arg-type]
        slow: dict[str, list[int]] = {}
        names: dict[bytes, str] = {}
        for entry in reply:
            if not isinstance(entry, list) or len(entry) < 4 or not isinstance(entry[3], list) or len(entry[3]) < 2:
                continue
            at, took, command = entry[1], entry[2], entry[3]
            if at < since or took < _SLOW_US or not _is_evalsha(command[0]):  # type: ignore[operator]
                continue
            if not names:
                names = {found.sha.encode(): found.name.rpartition("-")[0] for found in scripts().values()}
            if isinstance(command[1], bytes) and command[1] in names:
                slow.setdefault(names[command[1]], []).append(took)  # type: ignore[arg-type]
        for name, times in sorted(slow.items()):
            longest = f"the longest {max(times) / 1000:.0f} ms"
            self._tell("slow-scripts", f"the script {name} was slow {len(times)} times in the last hour, {longest}")


def _is_evalsha(word: Reply) -> bool:
    return isinstance(word, bytes) and word.lower() == b"evalsha"


def _parsed(reply: Reply) -> dict[str, str]:
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else ""
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line and not line.startswith("#"))


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _product(info: dict[str, str]) -> str | None:
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}" if "redis_version" in info else None
