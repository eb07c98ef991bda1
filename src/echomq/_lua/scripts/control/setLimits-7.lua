--- Sets or lifts limits of the queue (protocol 1.4, 3.23, 3.25), and has workers look again that wait for a slot.
--- @key meta
--- @key wait
--- @key prioritized
--- @key active
--- @key marker
--- @key limits
--- @key calls
--- @rest
--- @use clock limit_change meta_fields
--- @lane
--- @returns now

local q = { meta = meta, wait = wait, prioritized = prioritized, active = active, marker = marker, limits = limits }
limit_change.look(q)
local now, now_text = clock.read(clock_given)
meta_fields.set(meta, ARGV, rest)
limit_change.mark(q)
limit_change.tell(q)
return calls_kept.keep(calls, lane, number, now, now_text, { now_text })
