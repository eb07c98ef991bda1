--- Lets no worker fetch for a time, or again before that time has passed (protocol 3.23).
--- @key limiter
--- @key meta
--- @key wait
--- @key prioritized
--- @key active
--- @key marker
--- @key limits
--- @key calls
--- @arg after number
--- @use clock check place queue_meta
--- @lane
--- @returns now

-- The protocol's fetch looks at `limiter` only where there is a maximum. `limitedUntil` in meta is ours: it has our fetch look
-- there without one too, and until then only.
check.text(limiter)
check.hash(meta)
check.stream(limits)
check.list(wait)
check.zset(prioritized)
check.list(active)
check.zset(marker)
local now, now_text = clock.read(clock_given)

redis.call("HDEL", meta, "limitedUntil")   -- first, so that a full memory does not refuse the rest
if after > 0 then
  redis.call("SET", limiter, place.MANUAL, "PX", place.whole(after))
  redis.call("HSET", meta, "limitedUntil", place.whole(now + after))
else
  if redis.call("GET", limiter) == place.MANUAL then
    redis.call("DEL", limiter)
  end
  if redis.call("LLEN", wait) + redis.call("ZCARD", prioritized) > 0
    and not queue_meta.closed(queue_meta.read(meta), active) then
    place.mark(marker)
  end
end
redis.pcall("XADD", limits, "MAXLEN", "1", "*", "changed", "1")   -- wakes all workers that a rate limit has told to wait
redis.call("PEXPIRE", limits, "60000")
return calls_kept.keep(calls, lane, number, now, now_text, { now_text })
