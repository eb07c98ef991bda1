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
--- @use clock check place line_up
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
local found = redis.pcall("HMGET", key, "processedOn", "priority", "stc")
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
  redis.call("LREM", active, "1", job_id)
  redis.call("SREM", stalled, job_id)
  redis.call("HSET", key, "stc", place.whole(place.count(found[3]) + 1))
  local priority = place.priority(found[2])
  if priority > 0 then
    redis.call("ZADD", prioritized, place.front_score(priority, prioritized, q.pc), job_id)
  else
    line_up.put(q, job_id, 0, true)
  end
  line_up.mark(q)
  redis.pcall("XADD", events, "*", "event", "waiting", "jobId", job_id, "prev", "active")
  redis.pcall("XADD", events, "*", "event", "stalled", "jobId", job_id)
end
return { 1, since }
