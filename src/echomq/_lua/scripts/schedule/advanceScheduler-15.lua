--- The next iteration of a scheduler, made when a worker starts the current one and before its handler runs (protocol 3.24, "Advancing").
--- @key wait
--- @key active
--- @key prioritized
--- @key delayed
--- @key paused
--- @key completed
--- @key failed
--- @key waiting_children
--- @key schedulers
--- @key id
--- @key pc
--- @key meta
--- @key marker
--- @key events
--- @key calls
--- @arg scheduler_id
--- @arg job_id
--- @arg next_ms
--- @arg every
--- @arg priority number
--- @arg opts
--- @arg back
--- @arg latest
--- @arg spread
--- @arg from_ms
--- @use clock check queue_meta place paused_list schedule
--- @lane
--- @returns now, 1 made | 0 nothing to do | 3 nothing yet, and in place of the id the scheduler's hash (flat) | 2 the ids of these slots are taken: call again with those after; the id of the next iteration; its slot, or the last that was looked at

-- next_ms: the successor of a cron pattern, which the client works out; "" for an interval.
-- every: that of the job's own opts.repeat, for a scheduler whose hash has none ("" if there is none).
-- opts: the running job's, as JSON, with the count of the next iteration and without jobId, delay, timestamp and prevMillis.
-- "" if the job's own rhythm cannot be read: then the caller is given the scheduler's, to go on from that.
-- back: how many milliseconds before now the next slot may be, so that missed ones are caught up with; "" for none.
-- latest: after this no slot is made, nor is a run due; "" for no end. spread: the window that delays are drawn from; "" for none.
-- from_ms: for an interval, the slot from which to look on, where those before it are taken; else "".
local q = {
  base = base, wait = wait, active = active, prioritized = prioritized, delayed = delayed, paused = paused,
  completed = completed, failed = failed, waiting_children = waiting_children, events = events, pc = pc, id = id,
  marker = marker,
}
local settings = queue_meta.read(meta)
local current = schedule.slot(schedulers, scheduler_id)
local scheduler = base .. "repeat:" .. scheduler_id
local known = check.fields(scheduler, "name", "data", "every", "ic")
schedule.check(q, settings)
if known[4] and not check.is_count(known[4]) then
  error("BROKEN " .. scheduler .. " has an ic that is no whole number", 0)
end
local options = opts ~= "" and schedule.options_of(opts)
-- A hash without `ic` is a repeatable job of BullMQ 5 (protocol 13.2), which nobody goes on with.
local goes_on = current and known[4] and job_id == schedule.iteration_id(scheduler_id, current)
local step = next_ms == "" and (schedule.number(known[3]) or schedule.number(every)) or nil
local has_rhythm = options and (next_ms ~= "" or step and step >= 1 and step <= schedule.LATEST)
local now, now_text = clock.read(clock_given)
-- First, so that a full memory does not refuse the rest: without its next iteration a schedule would end.
redis.call("XTRIM", events, "MAXLEN", "~", settings.max_events)

local function answer(code, next_id, slot)
  return calls_kept.keep(calls, lane, number, now, now_text, { now_text, code, next_id or "", slot and place.whole(slot) or "" })
end

if not goes_on then
  return answer(0)
end
if not has_rhythm then
  return calls_kept.keep(calls, lane, number, now, now_text, { now_text, 3, redis.call("HGETALL", scheduler), "" })
end

local slot = tonumber(next_ms) or tonumber(from_ms)
  or schedule.after(current, step, now - (tonumber(back) or 0))
local free, last, queued, _, taken = schedule.find(q, scheduler_id, slot, step)
if queued then
  taken[#taken + 1] = schedule.iteration_id(scheduler_id, free)
end
if #taken > 0 then
  queue_meta.write_default(meta, settings)
  schedule.say_taken(q, settings, taken)
end
if not free then
  return answer(2, taken[#taken], last)
end
if free > math.min(tonumber(latest) or schedule.LATEST, schedule.LATEST) then
  return answer(0)
end

redis.call("ZADD", schedulers, place.whole(free), scheduler_id)
redis.call("HINCRBY", scheduler, "ic", "1")
if not queued then
  redis.call("INCR", id)
  queue_meta.write_default(meta, settings)
  if settings.paused then
    paused_list.take_over(paused, wait)
  end
  schedule.make(q, settings, {
    id = scheduler_id, slot = free, name = known[1] or scheduler_id, data = known[2] or "{}", options = options,
    priority = priority, spread = tonumber(spread), latest = tonumber(latest), pattern = next_ms ~= "",
  }, now, now_text)
end
return answer(1, schedule.iteration_id(scheduler_id, free), free)
