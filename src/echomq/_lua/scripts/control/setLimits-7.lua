--- Sets or lifts limits of the queue (protocol 1.4, 3.23, 3.25), and has workers look again that wait for a slot.
--- @key meta
--- @key wait
--- @key prioritized
--- @key active
--- @key marker
--- @key limits
--- @key calls
--- @rest
--- @use clock limit_change
--- @lane
--- @returns now

-- The rest are names and values; an empty value lifts the limit.
local q = { meta = meta, wait = wait, prioritized = prioritized, active = active, marker = marker, limits = limits }
limit_change.look(q)
local now, now_text = clock.read(clock_given)

for at = rest, #ARGV, 2 do
  redis.call("HDEL", meta, ARGV[at])   -- first, so that a full memory does not refuse the rest: then limits are wanted most
end
for at = rest, #ARGV, 2 do
  if ARGV[at + 1] ~= "" then
    redis.call("HSET", meta, ARGV[at], ARGV[at + 1])
  end
end
limit_change.mark(q)
limit_change.tell(q)
return calls_kept.keep(calls, lane, number, now, now_text, { now_text })
