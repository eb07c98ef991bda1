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
--- @arg offset
--- @arg priority number
--- @arg opts
--- @use clock check queue_meta place paused_list new_job state
--- @lane
--- @returns now, 1 added | 0 nothing to do | 2 the next id is taken: call again with the one after, the id of the next iteration, its time

-- next_ms: the successor of a cron pattern, which the client works out; "" for an interval. every, offset: those of the
-- job's own opts.repeat, for a scheduler whose hash has none ("" if there are none).
-- opts: the running job's, as JSON, with the count of the next iteration and without jobId, delay, timestamp and
-- prevMillis: those are put in here, as text, so that nothing of the rest is changed by being read and written again.
local SLOTS = 32

local settings = queue_meta.read(meta)
local current = check.read("sorted set", "ZSCORE", schedulers, scheduler_id)
local scheduler = base .. "repeat:" .. scheduler_id
local known = check.fields(scheduler, "name", "data", "every", "offset", "ic")
check.list(wait)
check.list(active)
check.zset(prioritized)
check.zset(delayed)
check.zset(marker)
check.stream(events)
check.counter(id)
check.counter(pc)
if settings.paused then
  check.list(paused)
end
if known[5] and not check.is_count(known[5]) then
  error("BROKEN " .. scheduler .. " has an ic that is no whole number", 0)
end
local body = string.match(opts, "^{(.*)}$")
if not body then
  error("BROKEN opts " .. opts .. " must be a JSON object", 0)
end
local now, now_text = clock.read(clock_given)
-- First, so that a full memory does not refuse the rest: without its next iteration a schedule would end.
redis.call("XTRIM", events, "MAXLEN", "~", settings.max_events)

local function answer(code, next_id, time)
  return calls_kept.keep(calls, lane, number, now, now_text, { now_text, code, next_id or "", time or "" })
end

-- A hash without `ic` is a repeatable job of BullMQ 5 (protocol 13.2), which nobody goes on with.
if not current or not known[5] or job_id ~= "repeat:" .. scheduler_id .. ":" .. place.whole(tonumber(current)) then
  return answer(0)
end

local previous = tonumber(current)
local step = next_ms == "" and tonumber(known[3] or every) or nil
local next_time
if next_ms ~= "" then
  next_time = tonumber(next_ms)
elseif not step or step < 1 or step ~= step then
  error("BROKEN " .. scheduler .. " has neither a pattern nor an interval", 0)
else
  local shift = tonumber(known[4] or offset) or 0
  next_time = previous + step
  if next_time < now then
    next_time = math.floor(now / step) * step + shift
    if next_time <= now then
      next_time = next_time + step
    end
  end
end

-- An id that is taken would end the schedule. What still waits there is the next iteration; a leftover is stepped over.
local q = {
  base = base, wait = wait, active = active, prioritized = prioritized, delayed = delayed, paused = paused,
  completed = completed, failed = failed, waiting_children = waiting_children, events = events, pc = pc,
}
local taken, next_id, time = {}, nil, nil
local adopted = false
for _ = 1, step and SLOTS or 1 do
  time = place.whole(next_time)
  next_id = "repeat:" .. scheduler_id .. ":" .. time
  if redis.call("EXISTS", base .. next_id) == 0 then
    break
  end
  taken[#taken + 1] = next_id
  local there = state.of(q, next_id)
  if there ~= "completed" and there ~= "failed" and there ~= "unknown" then
    adopted = true
    break
  end
  next_id = nil
  next_time = next_time + (step or 0)
end

if #taken > 0 then
  queue_meta.write_default(meta, settings)
  for _, taken_id in ipairs(taken) do
    redis.call("XADD", events, "MAXLEN", "~", settings.max_events, "*", "event", "duplicated", "jobId", taken_id)
  end
  if not next_id then
    return answer(2, taken[#taken], time)
  end
end
redis.call("ZADD", schedulers, time, scheduler_id)
redis.call("HINCRBY", scheduler, "ic", "1")
if adopted then
  return answer(1, next_id, time)
end

redis.call("INCR", id)
queue_meta.write_default(meta, settings)
if settings.paused then
  paused_list.take_over(paused, wait)
end
local delay = math.max(0, next_time - now)
local delay_text = place.whole(delay)
local parts = {
  '"jobId":' .. cjson.encode(next_id), '"delay":' .. delay_text, '"timestamp":' .. now_text,
}
if next_ms ~= "" then
  parts[#parts + 1] = '"prevMillis":' .. time
end
if body ~= "" then
  table.insert(parts, 1, body)
end
new_job.store(q, next_id, known[1] or scheduler_id, known[2] or "{}", "{" .. table.concat(parts, ",") .. "}", now_text,
  delay_text, place.whole(priority), { "rjk", scheduler_id })
if new_job.put(q, next_id, now, delay, priority, false) == "delayed" then
  place.mark_delayed(delayed, marker)
elseif not queue_meta.closed(settings, active) then
  place.mark(marker)
end
return answer(1, next_id, time)
