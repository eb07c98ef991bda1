--- Whether an active job has had no lock for long, while nobody sweeps; with `act` it goes back to the front of its line, as a
--- sweep would put it.
--- @key active
--- @key wait
--- @key paused
--- @key prioritized
--- @key stalled
--- @key check_at
--- @key meta
--- @key marker
--- @key events
--- @arg job_id
--- @arg older_ms number
--- @arg act
--- @use clock check line_up stalled_job
--- @returns 1 it is abandoned | 0 it is not; for how many milliseconds it has run

-- Safe to send again: what was put back is not active any more.
local q = {
  base = base, wait = wait, paused = paused, prioritized = prioritized, active = active, meta = meta, marker = marker,
  events = events, pc = base .. "pc",
}
line_up.look(q)
check.set(stalled)
local key = base .. job_id
local now = clock.read(clock_given)
local found = redis.pcall("HMGET", key, "processedOn")
if found.err or redis.call("EXISTS", key) == 0 or redis.call("EXISTS", key .. ":lock", check_at) > 0
  or not redis.call("LPOS", active, job_id) then
  return { 0, 0 }
end
local since = now - (tonumber(found[1] or "") or 0)
if since < older_ms then
  return { 0, 0 }
end
if act ~= "" then
  line_up.begin(q)
  redis.call("SREM", stalled, job_id)
  stalled_job.put_back(q, { now = now, max_stalled = math.huge }, job_id)
  line_up.mark(q)
end
return { 1, since }
