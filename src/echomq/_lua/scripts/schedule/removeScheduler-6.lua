--- Removes a schedule, going on or paused (protocol 3.24). Its iteration goes too if it is still delayed; one that is due, or runs, does so.
--- @key delayed
--- @key schedulers
--- @key meta
--- @key events
--- @key calls
--- @key paused_schedulers
--- @arg scheduler_id
--- @use clock check queue_meta job_keys schedule
--- @lane
--- @returns now, 1 removed | 0 there was none

local settings = queue_meta.read(meta)
check.zset(delayed)
check.stream(events)
local slot = check.read("sorted set", "ZSCORE", schedulers, scheduler_id)
local scheduler = base .. "repeat:" .. scheduler_id
local job_id = slot and schedule.iteration_id(scheduler_id, tonumber(slot))
if slot then
  check.hash(base .. job_id)
end
check.hash(paused_schedulers)
local now, now_text = clock.read(clock_given)

redis.call("XTRIM", events, "MAXLEN", "~", settings.max_events)   -- first, so that a full memory does not refuse the rest
local found = redis.call("HDEL", paused_schedulers, scheduler_id)
if slot then
  if redis.call("ZREM", delayed, job_id) == 1 then
    job_keys.delete(base .. job_id)
    redis.pcall("XADD", events, "*", "event", "removed", "jobId", job_id, "prev", "delayed")
  end
  redis.call("ZREM", schedulers, scheduler_id)
  if type(redis.pcall("HLEN", scheduler)) == "number" then   -- else it is somebody's, and the schedule is broken: it goes, that stays
    redis.call("DEL", scheduler)
  end
  found = 1
end
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, found })
