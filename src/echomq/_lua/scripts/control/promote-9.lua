--- A delayed job may run now (protocol 3.11).
--- @key delayed
--- @key wait
--- @key paused
--- @key prioritized
--- @key active
--- @key meta
--- @key marker
--- @key events
--- @key calls
--- @arg job_id
--- @use clock check place queue_keys state line_up
--- @lane
--- @returns now, 0 done | -1 no such job | -3 not delayed, and then its state

local q = {
  base = base, wait = wait, paused = paused, prioritized = prioritized, active = active, meta = meta, marker = marker,
  events = events, pc = base .. "pc",
}
line_up.look(q)
check.zset(delayed)
local job = check.fields(base .. job_id, "name", "priority")
local now, now_text = clock.read(clock_given)

local code, found = 0, ""
line_up.begin(q)
if not (job[1] or job[2]) then
  code = -1
elseif not redis.call("ZSCORE", delayed, job_id) then
  code, found = -3, state.near(queue_keys.of(base), job_id)
else
  redis.call("ZREM", delayed, job_id)
  line_up.put(q, job_id, place.priority(job[2]))
  line_up.mark(q)
  redis.pcall("XADD", events, "*", "event", "waiting", "jobId", job_id, "prev", "delayed")
  redis.call("HSET", base .. job_id, "delay", "0")
end
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, code, found })
