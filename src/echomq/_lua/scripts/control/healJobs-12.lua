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
--- @use clock check place line_up
--- @lane
--- @returns now, then the ids that stood nowhere, each with its state by now, or "broken": no whole job, left as it is

-- A transition of BullMQ 5 that renames a list over another leaves such jobs (protocol 3.16). The caller has found them by
-- looking around for a while, so that each of them may be one that was moving; here they are looked for at one moment.
local FEW = 10      -- up to here a look for each is cheaper than one at the whole list
local CHUNK = 1000

local q = {
  base = base, wait = wait, paused = paused, prioritized = prioritized, active = active, meta = meta, marker = marker,
  events = events, pc = base .. "pc",
}
line_up.look(q)
local sets, lists = { completed, failed, delayed, prioritized, waiting_children }, { active, wait, paused }
for _, set in ipairs(sets) do
  check.zset(set)
end
check.list(paused)

--- Takes those out of `wanted` that stand in this list.
local function strike_out(wanted, list)
  local left = 0
  for _ in pairs(wanted) do
    left = left + 1
  end
  if left <= FEW then
    for id in pairs(wanted) do
      if redis.call("LPOS", list, id) then
        wanted[id] = nil
      end
    end
    return
  end
  for from = 0, redis.call("LLEN", list) - 1, CHUNK do
    for _, id in ipairs(redis.call("LRANGE", list, place.whole(from), place.whole(from + CHUNK - 1))) do
      wanted[id] = nil
    end
  end
end

local function whole_time(text)
  local number = tonumber(text or "")
  return number and number > 0 and number < check.EXACT and number or nil
end

local wanted = {}
for index = rest, #ARGV do
  wanted[ARGV[index]] = true
end
for id in pairs(wanted) do
  for _, set in ipairs(sets) do
    if redis.call("ZSCORE", set, id) then
      wanted[id] = nil
      break
    end
  end
end
for _, list in ipairs(lists) do
  strike_out(wanted, list)
end

local now, now_text = clock.read(clock_given)
local reply = { now_text }
local lost = {}
for index = rest, #ARGV do
  local id = ARGV[index]
  local job = wanted[id] and redis.pcall("HMGET", base .. id, "name", "data", "opts", "timestamp", "finishedOn",
    "returnvalue", "failedReason", "delay", "priority", "processedOn", "ats", "defa")
  wanted[id] = nil   -- an id may come twice
  if job and not job.err then
    if job[1] and job[2] and job[3] and job[4] then
      if redis.call("EXISTS", base .. id .. ":lock") == 0 then   -- else a worker is about it; a later look is early enough
        lost[#lost + 1] = { id = id, hash = job }
      end
    elseif (job[1] or job[2] or job[3] or job[4] or job[10] or job[11]) and string.sub(id, 1, 7) ~= "repeat:" then
      reply[#reply + 1], reply[#reply + 2] = id, "broken"
    end
  end
end

local function tell(id, event, ...)
  redis.pcall("XADD", events, "*", "event", event, "jobId", id, ...)
end

--- Where a job with this hash belongs: puts it there, and names the state.
local function put_back(id, hash)
  local ended = whole_time(hash[5])
  if ended and (hash[6] or hash[7]) then
    local state = hash[6] and "completed" or "failed"
    redis.call("ZADD", hash[6] and completed or failed, place.whole(ended), id)
    return state   -- its event has told of its end
  elseif hash[5] then
    redis.call("HDEL", base .. id, "finishedOn")   -- an end without an outcome is none
  end
  local children = redis.pcall("SCARD", base .. id .. ":dependencies")
  if type(children) == "number" and children > 0 and not hash[12] then
    redis.call("ZADD", waiting_children, now_text, id)
    tell(id, "waiting-children", "prev", "unknown")
    return "waiting-children"
  end
  -- From its last start, if there was one: when it was told to wait is not written down.
  local delay, since = whole_time(hash[8]), math.max(whole_time(hash[4]) or 0, whole_time(hash[10]) or 0)
  if delay and since + delay > now then
    redis.call("ZADD", delayed, place.due_score(delayed, since + delay), id)
    place.mark_delayed(delayed, marker)
    tell(id, "delayed", "delay", place.whole(since + delay))
    return "delayed"
  end
  local priority = place.priority(hash[9])
  if priority > 0 then
    redis.call("ZADD", prioritized, place.front_score(priority, prioritized, q.pc), id)
  else
    redis.call("RPUSH", wait, id)   -- it has waited longest
  end
  tell(id, "waiting", "prev", "unknown")
  return priority > 0 and "prioritized" or "waiting"
end

if #lost > 0 then
  line_up.begin(q)
  for _, job in ipairs(lost) do
    reply[#reply + 1], reply[#reply + 2] = job.id, put_back(job.id, job.hash)
  end
  line_up.mark(q)
end
return calls_kept.keep(calls, lane, number, now, now_text, reply)
