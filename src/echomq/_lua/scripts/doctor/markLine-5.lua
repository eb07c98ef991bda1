--- Sets the base marker where jobs wait, the queue is open and none is set: else a free worker looks only when it happens to.
--- @key wait
--- @key prioritized
--- @key active
--- @key meta
--- @key marker
--- @use check queue_meta place
--- @returns 1 it was missing | 0 it was there, or is not needed

-- Safe to send again: a marker that is there is not set again.
local settings = queue_meta.read(meta)
check.list(active)
local waiting = check.list(wait) + check.zset(prioritized)
if waiting == 0 or queue_meta.closed(settings, active) or check.read("sorted set", "ZSCORE", marker, "0") then
  return 0
end
redis.call("ZREM", marker, "0")   -- a write that a full memory does not refuse, nor then the next
place.mark(marker)
return 1
