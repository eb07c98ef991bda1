--- Sets how long the event log of the queue may grow, in entries and in bytes.
--- @key meta
--- @key calls
--- @rest
--- @use clock check meta_fields
--- @lane
--- @returns now

check.hash(meta)
local now, now_text = clock.read(clock_given)
meta_fields.set(meta, ARGV, rest)
return calls_kept.keep(calls, lane, number, now, now_text, { now_text })
