--- A worker has taken a marker and cannot use it (it closes, pauses, or its slots have filled): wakes another if jobs wait.
--- @key wait
--- @key prioritized
--- @key active
--- @key delayed
--- @key meta
--- @key marker
--- @use check queue_meta place
--- @returns 1 if the marker was set, else 0

-- Safe to send again: a spare marker costs one empty fetch.
local settings = queue_meta.read(meta)
check.list(active)
check.zset(marker)
check.zset(delayed)
local placed = 0
if check.list(wait) + check.zset(prioritized) > 0 and not queue_meta.closed(settings, active) then
  place.mark(marker)
  placed = 1
end
place.mark_delayed(delayed, marker)
return placed
