--- A job gets another priority; one that waits gets the place that goes with it (protocol 3.13).
--- @key wait
--- @key paused
--- @key prioritized
--- @key active
--- @key meta
--- @key marker
--- @key events
--- @key calls
--- @arg job_id
--- @arg priority number
--- @arg lifo
--- @use clock check place line_up
--- @lane
--- @returns now, 0 done | -1 no such job

local q = {
  base = base, wait = wait, paused = paused, prioritized = prioritized, active = active, meta = meta, marker = marker,
  events = events, pc = base .. "pc",
}
line_up.look(q)
local job = check.fields(base .. job_id, "name", "priority")
local now, now_text = clock.read(clock_given)

local code = 0
line_up.begin(q)
if not (job[1] or job[2]) then
  code = -1
else
  local first = lifo == "1"
  if redis.call("ZREM", prioritized, job_id) == 1 or redis.call("LREM", wait, "-1", job_id) == 1
    or (q.settings.paused and redis.call("LREM", paused, "-1", job_id) == 1) then
    if first and priority > 0 then
      redis.call("ZADD", prioritized, place.first_score(priority, prioritized), job_id)
    else
      line_up.put(q, job_id, priority, first)
      line_up.mark(q)
    end
  end
  redis.call("HSET", base .. job_id, "priority", place.whole(priority))
end
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, code, "" })
