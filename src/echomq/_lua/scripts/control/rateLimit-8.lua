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
--- @use clock check place limit_change
--- @lane
--- @returns now

-- The protocol's fetch looks at `limiter` only where there is a maximum. `limitedUntil` in meta is ours: it has our fetch look
-- there without one too, and until then only.
check.text(limiter)
local q = { meta = meta, wait = wait, prioritized = prioritized, active = active, marker = marker, limits = limits }
limit_change.look(q)
local now, now_text = clock.read(clock_given)

redis.call("HDEL", meta, "limitedUntil")   -- first, so that a full memory does not refuse the rest
if after > 0 then
  redis.call("SET", limiter, place.MANUAL, "PX", place.whole(after))
  redis.call("HSET", meta, "limitedUntil", place.whole(now + after))
else
  if redis.call("GET", limiter) == place.MANUAL then
    redis.call("DEL", limiter)
  end
  limit_change.mark(q)
end
limit_change.tell(q)
return calls_kept.keep(calls, lane, number, now, now_text, { now_text })
