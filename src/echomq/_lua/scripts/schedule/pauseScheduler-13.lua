--- Pauses a schedule: its iteration that waits and that nobody has started is taken out, and its definition goes where no other runtime
--- would run it.
--- @key wait
--- @key active
--- @key prioritized
--- @key delayed
--- @key paused
--- @key completed
--- @key failed
--- @key waiting_children
--- @key schedulers
--- @key meta
--- @key events
--- @key calls
--- @key paused_schedulers
--- @arg scheduler_id
--- @use clock check queue_meta place paused_list schedule
--- @lane
--- @returns now, 1 paused | 0 there is none

local q = {
  base = base, wait = wait, active = active, prioritized = prioritized, delayed = delayed, paused = paused,
  completed = completed, failed = failed, waiting_children = waiting_children, events = events,
}
local settings = queue_meta.read(meta)
check.list(wait)
check.list(active)
check.list(paused)
for _, set in ipairs({ prioritized, delayed, completed, failed, waiting_children }) do
  check.zset(set)
end
check.stream(events)
local scheduler = base .. "repeat:" .. scheduler_id
local slot = schedule.slot(schedulers, scheduler_id)
local flat = check.read("hash", "HGETALL", scheduler)
local shelved = check.read("hash", "HEXISTS", paused_schedulers, scheduler_id) == 1
local fields = {}
for index = 1, #flat, 2 do
  fields[flat[index]] = flat[index + 1]
end
local goes_on = slot and fields.ic and true or false
local job_id, at, started, deid
if goes_on then
  job_id = schedule.iteration_id(scheduler_id, slot)
  at, started = schedule.look(q, job_id)
  deid = at and schedule.look_unique(q, job_id) or nil
end
local taken_out = at and schedule.QUEUED[at] and not started or false
local now, now_text = clock.read(clock_given)

redis.call("XTRIM", events, "MAXLEN", "~", settings.max_events)   -- first, so that a full memory does not refuse the rest
if goes_on then
  if settings.paused then
    paused_list.take_over(paused, wait)
  end
  if taken_out then
    schedule.take_out(q, job_id, at, deid, false)
    redis.pcall("XADD", events, "*", "event", "removed", "jobId", job_id, "prev", at == "waiting" and "wait" or at)
  end
  redis.call("HSET", paused_schedulers, scheduler_id,
    cjson.encode({ fields = fields, slot = place.whole(slot), begun = not taken_out }))
  redis.call("ZREM", schedulers, scheduler_id)
  redis.call("DEL", scheduler)
end
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, (goes_on or shelved) and 1 or 0 })
