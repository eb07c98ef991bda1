--- Cuts the event log to about its latest `most` entries, at most 1,000 a call.
--- @key events
--- @key calls
--- @arg most
--- @use clock check
--- @lane
--- @returns now, how many were removed

check.stream(events)
local now, now_text = clock.read(clock_given)
local removed = redis.call("XTRIM", events, "MAXLEN", "~", most, "LIMIT", "1000")
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, removed })
