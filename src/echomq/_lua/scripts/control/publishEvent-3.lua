--- Writes an event of the caller's own (protocol 9).
--- @key meta
--- @key events
--- @key calls
--- @rest
--- @use clock check queue_meta event_log
--- @lane
--- @returns now

-- The rest are the event's name, then names and values of its fields.
local settings = queue_meta.read(meta)
check.stream(events)
local now, now_text = clock.read(clock_given)

redis.call("XADD", events, "MAXLEN", "~", settings.max_events, "*", "event", unpack(ARGV, rest))
local said_bytes = 0
for at = rest, #ARGV do
  said_bytes = said_bytes + #ARGV[at]
end
event_log.wrote(events, meta, said_bytes, number)
return calls_kept.keep(calls, lane, number, now, now_text, { now_text })
