--- Lets delayed jobs whose time has long come into the line, at most 250 a call, as a worker's fetch would.
--- @key wait
--- @key paused
--- @key prioritized
--- @key delayed
--- @key active
--- @key meta
--- @key marker
--- @key events
--- @arg late_ms number
--- @use clock check place promotion line_up
--- @returns how many were promoted, and whether more are due; none where the first is not as late as that

-- Safe to send again: what was promoted is not delayed any more.
local q = {
  base = base, wait = wait, paused = paused, prioritized = prioritized, delayed = delayed, active = active, meta = meta,
  marker = marker, events = events, pc = base .. "pc",
}
line_up.look(q)
local first = check.read("sorted set", "ZRANGE", delayed, "0", "0", "WITHSCORES")
local now = clock.read(clock_given)
if not first[2] or now - place.due_of(first[2]) < late_ms then
  return { 0, 0 }
end
line_up.begin(q)
local count, more = promotion.run(q, now)
line_up.mark(q)
place.mark_delayed(delayed, marker)
return { count, more and 1 or 0 }
