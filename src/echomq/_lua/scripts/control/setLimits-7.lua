--- Sets or lifts limits of the queue (protocol 1.4, 3.23, 3.25), and has workers look again that wait for a slot.
--- @key meta
--- @key wait
--- @key prioritized
--- @key active
--- @key marker
--- @key limits
--- @key calls
--- @rest
--- @use clock check place queue_meta
--- @lane
--- @returns now

-- The rest are names and values; an empty value lifts the limit.
check.hash(meta)
check.stream(limits)
check.list(wait)
check.zset(prioritized)
check.list(active)
check.zset(marker)
local now, now_text = clock.read(clock_given)

for at = rest, #ARGV, 2 do
  redis.call("HDEL", meta, ARGV[at])   -- first, so that a full memory does not refuse the rest: then limits are wanted most
end
for at = rest, #ARGV, 2 do
  if ARGV[at + 1] ~= "" then
    redis.call("HSET", meta, ARGV[at], ARGV[at + 1])
  end
end
if redis.call("LLEN", wait) + redis.call("ZCARD", prioritized) > 0
  and not queue_meta.closed(queue_meta.read(meta), active) then
  place.mark(marker)
end
redis.pcall("XADD", limits, "MAXLEN", "1", "*", "changed", "1")   -- wakes all workers that a rate limit has told to wait
redis.call("PEXPIRE", limits, "60000")
return calls_kept.keep(calls, lane, number, now, now_text, { now_text })
