--- Writes an event of the caller's own (protocol 9).
--- @key meta
--- @key events
--- @key calls
--- @rest
--- @use clock check queue_meta
--- @lane
--- @returns now

-- The rest are the event's name, then names and values of its fields.
local settings = queue_meta.read(meta)
check.stream(events)
local now, now_text = clock.read(clock_given)

redis.call("XADD", events, "MAXLEN", "~", settings.max_events, "*", "event", unpack(ARGV, rest))
return calls_kept.keep(calls, lane, number, now, now_text, { now_text })
