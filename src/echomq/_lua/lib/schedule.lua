--- @use check place new_job state queue_meta job_keys
--- Slots of schedules and their iterations (protocol 3.24). An iteration is the job of one slot: its id says whose, and when.

local M = {}

local TRIES = 32      -- slots that are looked at before the caller is asked to come again
local QUEUED = { delayed = true, prioritized = true, waiting = true }
M.LATEST = 253402300799000   -- the last moment, in milliseconds, that every client can write
M.QUEUED = QUEUED

function M.iteration_id(id, slot)
  return "repeat:" .. id .. ":" .. place.whole(slot)
end

--- The slot of an interval after another, in step with it: the next one, or, where that is before `from`, the first after `from`.
function M.after(previous, step, from)
  local slot = previous + step
  if slot < from then
    local phase = previous % step
    slot = math.floor(from / step) * step + phase
    if slot <= from then
      slot = slot + step
    end
  end
  return slot
end

--- A number of somebody's hash or options that one can count with, or nil.
function M.number(text)
  local number = tonumber(text or "")
  if number and number > -check.EXACT and number < check.EXACT then   -- not true of NaN
    return math.floor(number)
  end
  return nil
end

--- The slot of a schedule that goes on, or nil.
function M.slot(schedulers, id)
  local score = check.read("sorted set", "ZSCORE", schedulers, id)
  if not score then
    return nil
  end
  local slot = M.number(score)
  if not slot or slot < 0 or slot > M.LATEST then
    error("BROKEN " .. schedulers .. " has a score of " .. id .. " that is no moment: " .. score .. "; remove the schedule", 0)
  end
  return slot
end

--- Where a job stands, and whether a worker has ever started it: state, or nil if it has no hash; true or false.
function M.look(q, job_id)
  local key = q.base .. job_id
  if redis.call("EXISTS", key) == 0 then
    return nil, false
  end
  local starts = check.fields(key, "ats")[1]
  return state.of(q, job_id), (tonumber(starts or "0") or 1) > 0
end

--- The first slot from this one on that an iteration can have. Only reads. An id that is taken would end the schedule: a queued job
--- of that id becomes the iteration, anything else is stepped over.
-- Returns the slot, or nil; the last slot looked at; where its job stands and whether it was started, if there is one; the ids that are taken.
function M.find(q, id, slot, step)
  local taken = {}
  for _ = 1, step and TRIES or 1 do
    local job_id = M.iteration_id(id, slot)
    local at, started = M.look(q, job_id)
    if not at then
      return slot, slot, nil, false, taken
    end
    if QUEUED[at] then
      return slot, slot, at, started, taken
    end
    taken[#taken + 1] = job_id
    slot = slot + (step or 0)
  end
  return nil, slot, nil, false, taken
end

--- Says of each id that it was there.
function M.say_taken(q, settings, taken)
  for _, job_id in ipairs(taken) do
    redis.pcall("XADD", q.events, "MAXLEN", "~", settings.max_events, "*", "event", "duplicated", "jobId", job_id)
  end
end

--- Reads what else goes with an iteration that is taken out.
function M.look_unique(q, job_id)
  local deid = check.fields(q.base .. job_id, "deid")[1]
  if deid and check.text(q.base .. "de:" .. deid) == job_id then
    return deid
  end
  return nil
end

--- Removes an iteration that nobody has started. `at`: where it stands; `kept_in_line`: its id stays there, for a new one.
function M.take_out(q, job_id, at, deid, kept_in_line)
  if at == "waiting" then
    if not kept_in_line and redis.call("LREM", q.wait, "1", job_id) == 0 then
      redis.call("LREM", q.paused, "1", job_id)
    end
  else
    redis.call("ZREM", q[at], job_id)
  end
  job_keys.delete(q.base .. job_id)
  if deid then
    redis.call("DEL", q.base .. "de:" .. deid, q.base .. "dn:" .. deid)
  end
end

local function inside(object, what)
  local body = string.match(object, "^{(.*)}$")
  if not body then
    error("BROKEN " .. what .. " " .. object .. " must be a JSON object", 0)
  end
  return body
end

--- Options of an iteration, as JSON without what `make` puts in. As text, so that nothing of it is changed by being read and written.
function M.options(id, template, repeating, count)
  local body = inside(template, "opts")
  local rhythm = inside(repeating, "repeat")
  return (body == "" and "" or body .. ",") .. '"repeat":{' .. (rhythm == "" and "" or rhythm .. ",")
    .. '"count":' .. place.whole(count) .. '},"repeatJobKey":' .. cjson.encode(id)
end

--- The same of a running iteration's options, which have all that.
function M.options_of(opts)
  return inside(opts, "opts")
end

--- A schedule's share of its spread: where within the window, which ends at the schedule's end at the latest, the iteration of a slot
--- is due. The same wherever it is worked out.
local function share(id, slot, spread, latest)
  spread = math.min(spread, math.max(latest - slot, 0))
  local drawn = tonumber(string.sub(redis.sha1hex(id .. ":" .. place.whole(slot)), 1, 8), 16)
  return math.floor(drawn / 4294967296 * spread)
end

--- Stores the iteration of a slot and puts it where it belongs, with the marker that this needs.
-- made: id, slot, name, data, options, priority, spread (milliseconds or nil), latest (the schedule's end, or nil), pattern (true or false),
-- in_line (its id stands in wait).
function M.make(q, settings, made, now, now_text)
  local job_id = M.iteration_id(made.id, made.slot)
  local delay = math.max(0, made.slot + (made.spread and share(made.id, made.slot, made.spread, made.latest or M.LATEST) or 0) - now)
  local delay_text = place.whole(delay)
  local parts = {
    '"jobId":' .. cjson.encode(job_id), '"delay":' .. delay_text, '"timestamp":' .. now_text,
  }
  if made.options ~= "" then
    table.insert(parts, 1, made.options)
  end
  if made.pattern then
    parts[#parts + 1] = '"prevMillis":' .. place.whole(made.slot)
  end
  new_job.store(q, job_id, made.name, made.data, "{" .. table.concat(parts, ",") .. "}", now_text, delay_text,
    place.whole(made.priority), { "rjk", made.id })
  if made.in_line then
    redis.pcall("XADD", q.events, "*", "event", "waiting", "jobId", job_id)
  elseif new_job.put(q, job_id, now, delay, made.priority, false) == "delayed" then
    place.mark_delayed(q.delayed, q.marker)
    return
  end
  if not queue_meta.closed(settings, q.active) then
    place.mark(q.marker)
  end
end

--- Looks at what every change of a schedule touches, before its first write.
function M.check(q, settings)
  check.list(q.wait)
  check.list(q.active)
  check.zset(q.prioritized)
  check.zset(q.delayed)
  check.zset(q.completed)
  check.zset(q.failed)
  check.zset(q.waiting_children)
  check.zset(q.marker)
  check.stream(q.events)
  check.counter(q.id)
  check.counter(q.pc)
  if settings.paused then
    check.list(q.paused)
  end
end

return M
