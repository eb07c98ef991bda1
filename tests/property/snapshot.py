"""All that is on a server, in one look."""

from __future__ import annotations

from typing import Any

import redis

from tests.store.scripts import pairs, text

_LOOK = """
local READ = {
  string = { "GET" }, hash = { "HGETALL" }, list = { "LRANGE", "0", "-1" }, set = { "SMEMBERS" },
  zset = { "ZRANGE", "0", "-1", "WITHSCORES" }, stream = { "XRANGE", "-", "+" },
}
local found = {}
for _, key in ipairs(redis.call("KEYS", "*")) do
  local kind = redis.call("TYPE", key).ok
  local read = READ[kind]
  local expires = redis.call("PTTL", key) ~= -1 and 1 or 0
  found[#found + 1] = { key, kind, redis.call(read[1], key, unpack(read, 2)), expires }
end
return found
"""


def snapshot(client: redis.Redis) -> dict[str, Any]:
    """Every key with its whole content: hashes and sorted sets as dictionaries, streams as their entries, event first.

    Of a key that expires there is a second entry, ``"<key> expires"``.
    """
    found: dict[str, Any] = {}
    for key, kind, value, expires in text(client.execute_command("EVAL", _LOOK, 0)):
        found[key] = _content(kind, value)
        if expires:
            found[key + " expires"] = True
    return found


def _content(kind: str, value: Any) -> Any:
    match kind:
        case "hash":
            return pairs(value)
        case "zset":
            return {member: float(score) for member, score in pairs(value).items()}
        case "set":
            return set(value)
        case "stream":
            return [fields[1:] for _, fields in value]
    return value
