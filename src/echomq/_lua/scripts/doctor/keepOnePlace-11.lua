--- Where an id stands; and with `act` it is taken out of all places but one, or of all if it has no hash (protocol 3.1).
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
--- @arg job_id
--- @arg act
--- @rest
--- @use check queue_meta place
--- @returns hash | none | other; how many entries were taken out, -1 if a worker runs it and it has ended; the places, each as often as it stands there

-- Safe to send again: once the id stands in one place there is nothing left to do.
--
-- act: "" to look; "hash" or "none": to act if it is that.
-- Which place is kept. The job is neither lost nor run twice by it:
--   a worker runs it (it is active, with a lock): active; what had been waiting beside it would be a second run. Its end is left
--     to its worker, so a place among the ended is not touched before that
--   its hash tells of an end: that end, and nothing waits for a second run
--   its hash tells of none: the place where it waits for a run, or for its end
--   active without a lock, beside waiting: active, from where a sweep puts it back if nobody runs it
--   several places to wait in: for its children, while some are pending; else the one that the protocol looks at first
-- rest: for lists that are too long to be searched: name, index from the head, index from the tail, where it was seen.
local LONG = 20000     -- elements that are searched as a whole
local NEAR = 500       -- and in longer lists those around the places where it was seen, or at the ends

local sets = {
  { "completed", completed }, { "failed", failed }, { "delayed", delayed }, { "prioritized", prioritized },
  { "waiting-children", waiting_children },
}
local lists = { { "active", active }, { "wait", wait }, { "paused", paused } }
local settings = queue_meta.read(meta)
check.zset(marker)
check.stream(events)

local key = base .. job_id
local found = redis.pcall("HMGET", key, "finishedOn", "returnvalue", "failedReason", "defa", "name")
local kind = "other"
if not found.err then
  kind = redis.call("EXISTS", key) == 1 and "hash" or "none"
end

-- Where it stands, and how often.
local at, reply = {}, { kind, 0 }
local function stands(name, times)
  at[name] = times
  for _ = 1, times do
    reply[#reply + 1] = name
  end
end
for _, set in ipairs(sets) do
  check.zset(set[2])
  if redis.call("ZSCORE", set[2], job_id) then
    stands(set[1], 1)
  end
end

local function in_long_list(name, list, length)
  local seen, times = {}, 0
  local function look(from, to)
    from, to = math.max(from, 0), math.min(to, length - 1)
    for offset, id in ipairs(redis.call("LRANGE", list, place.whole(from), place.whole(to))) do
      local index = from + offset - 1
      if id == job_id and not seen[index] then
        seen[index] = true
        times = times + 1
      end
    end
  end
  look(0, NEAR)
  look(length - NEAR, length - 1)
  for index = rest, #ARGV, 3 do
    if ARGV[index] == name then
      local head, tail = tonumber(ARGV[index + 1]), length - tonumber(ARGV[index + 2])
      look(head - NEAR, head + NEAR)
      look(tail - NEAR, tail + NEAR)
    end
  end
  return times
end

for _, list in ipairs(lists) do
  local length = check.list(list[2])
  if length > LONG then
    stands(list[1], in_long_list(list[1], list[2], length))
  elseif length > 0 then
    stands(list[1], #redis.call("LPOS", list[2], job_id, "COUNT", "0"))
  end
end
for name, times in pairs(at) do
  if times == 0 then
    at[name] = nil
  end
end
if act ~= kind or kind == "other" then
  return reply
end

local function first_of(names)
  for _, name in ipairs(names) do
    if at[name] then
      return name
    end
  end
  return nil
end

local function the_end()
  if at.completed and at.failed then
    local same = found[1] and tonumber(found[1]) == tonumber(redis.call("ZSCORE", completed, job_id))
    return (same or found[2] and not found[3]) and "completed" or "failed"
  end
  return first_of({ "completed", "failed" })
end

local function to_keep()
  if kind == "none" then
    return nil
  end
  local ended = the_end()
  local waits = first_of({ "delayed", "prioritized", "wait", "paused", "waiting-children" })
  if at["waiting-children"] and not found[4] and check.set(key .. ":dependencies") > 0 then
    waits = "waiting-children"
  end
  if ended and (found[1] and (found[2] or found[3]) or not (at.active or waits)) then
    return ended
  end
  return at.active and "active" or waits
end

local running = kind == "hash" and at.active and redis.call("EXISTS", key .. ":lock") == 1
if running and (at.completed or at.failed) then
  reply[2] = -1
  return reply
end
local kept = running and "active" or to_keep()
local taken = 0
if kind == "none" and at.active then
  redis.call("UNLINK", key .. ":lock")   -- of a job that is no more; a worker that renews it is told so
end
for _, set in ipairs(sets) do
  if at[set[1]] and set[1] ~= kept then
    taken = taken + redis.call("ZREM", set[2], job_id)
  end
end
for _, list in ipairs(lists) do
  local times = at[list[1]]
  if times and list[1] ~= kept then
    taken = taken + redis.call("LREM", list[2], "0", job_id)
  elseif times and times > 1 then
    taken = taken + redis.call("LREM", list[2], tostring(times - 1), job_id)   -- from the head: what would run next stays
  end
end
-- Its slot is free: whoever waits for one looks again.
local waiting = redis.call("LLEN", wait) + redis.call("ZCARD", prioritized)
if at.active and kept ~= "active" and waiting > 0 and not queue_meta.closed(settings, active) then
  place.mark(marker)
end
reply[2] = taken
return reply
