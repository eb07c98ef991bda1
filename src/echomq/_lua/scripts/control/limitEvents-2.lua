--- Sets how long the event log of the queue may grow, in entries and in bytes.
--- @key meta
--- @key calls
--- @rest
--- @use clock check
--- @lane
--- @returns now

-- The rest are fields of `meta` and values; an empty value takes the field away.
check.hash(meta)
local now, now_text = clock.read(clock_given)
for at = rest, #ARGV, 2 do
  redis.call("HDEL", meta, ARGV[at])   -- first, so that a full memory does not refuse the rest: then this is wanted
end
for at = rest, #ARGV, 2 do
  if ARGV[at + 1] ~= "" then
    redis.call("HSET", meta, ARGV[at], ARGV[at + 1])
  end
end
return calls_kept.keep(calls, lane, number, now, now_text, { now_text })
