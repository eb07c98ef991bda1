--- Jobs that stand in no state although they are there go back to where they belong, at most 100 a call.
--- @key completed
--- @key failed
--- @key delayed
--- @key prioritized
--- @key waiting_children
--- @key active
--- @key wait
--- @key paused
--- @key meta
--- @key marker
--- @key events
--- @key calls
--- @rest
--- @use clock check place line_up lost_job
--- @lane
--- @returns now, then the ids that were put back, each with its state by now

-- A transition of BullMQ 5 that renames a list over another leaves such jobs (protocol 3.16). Of each the caller gives the id
-- and the mark that lookForLost gave; nobody else puts it back but another heal, which changes the mark.
local q = {
  base = base, wait = wait, paused = paused, prioritized = prioritized, active = active, meta = meta, marker = marker,
  events = events, pc = base .. "pc",
}
line_up.look(q)
local sets = { completed, failed, delayed, prioritized, waiting_children }
for _, set in ipairs(sets) do
  check.zset(set)
end

local function whole_time(text)
  local number = tonumber(text or "")
  return number and number > 0 and number < check.EXACT and number or nil
end

local now, now_text = clock.read(clock_given)
local reply = { now_text }
local nowhere, met = {}, {}
for index = rest, #ARGV, 2 do
  local id, mark = ARGV[index], ARGV[index + 1]
  local key = base .. id
  if mark ~= "" and not met[id] and lost_job.mark(key) == mark and redis.call("EXISTS", key .. ":lock") == 0 then
    local somewhere = false
    for _, set in ipairs(sets) do
      somewhere = somewhere or redis.call("ZSCORE", set, id)
    end
    if not somewhere then
      nowhere[#nowhere + 1] = { id = id, hash = redis.call("HMGET", key, "finishedOn", "returnvalue", "failedReason", "delay",
        "timestamp", "processedOn", "priority", "defa", "healed") }
    end
  end
  met[id] = true
end

local function tell(id, event, ...)
  redis.pcall("XADD", events, "*", "event", event, "jobId", id, ...)
end

--- Where a job with this hash belongs: puts it there, and names the state.
local function put_back(id, hash)
  redis.call("HSET", base .. id, "healed", place.whole(place.count(hash[9]) + 1))
  local ended = whole_time(hash[1])
  if ended and (hash[2] or hash[3]) then
    local state = hash[2] and "completed" or "failed"
    redis.call("ZADD", hash[2] and completed or failed, place.whole(ended), id)
    return state   -- its event has told of its end
  elseif hash[1] then
    redis.call("HDEL", base .. id, "finishedOn")   -- an end without an outcome is none
  end
  local children = redis.pcall("SCARD", base .. id .. ":dependencies")
  if type(children) == "number" and children > 0 and not hash[8] then
    redis.call("ZADD", waiting_children, now_text, id)
    tell(id, "waiting-children", "prev", "unknown")
    return "waiting-children"
  end
  -- From its last start, if there was one: when it was told to wait is not written down.
  local delay, since = whole_time(hash[4]), math.max(whole_time(hash[5]) or 0, whole_time(hash[6]) or 0)
  if delay and since + delay > now then
    redis.call("ZADD", delayed, place.due_score(delayed, since + delay), id)
    place.mark_delayed(delayed, marker)
    tell(id, "delayed", "delay", place.whole(since + delay))
    return "delayed"
  end
  local priority = place.priority(hash[7])
  if priority > 0 then
    redis.call("ZADD", prioritized, place.front_score(priority, prioritized, q.pc), id)
  else
    redis.call("RPUSH", wait, id)   -- it has waited longest
  end
  tell(id, "waiting", "prev", "unknown")
  return priority > 0 and "prioritized" or "waiting"
end

if #nowhere > 0 then
  line_up.begin(q)
  for _, job in ipairs(nowhere) do
    reply[#reply + 1], reply[#reply + 2] = job.id, put_back(job.id, job.hash)
  end
  line_up.mark(q)
end
return calls_kept.keep(calls, lane, number, now, now_text, reply)
