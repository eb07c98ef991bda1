--- @rare
--- @use place
--- Which jobs a fetch takes when some of them are to be those that have waited longest (docs/priorities.md).

local M = {}

local CLASSES = 32   -- looked at from the front; and one more by chance, so that none is left out for ever

--- When the job was added. What is no job comes first: the fetch takes it out.
local function added(q, id)
  local found = redis.pcall("HGET", q.base .. id, "timestamp")
  return tonumber(type(found) == "string" and found or "") or 0
end

--- The job of a line at this place from its head: of a class, or of wait if there is no class.
local function at(q, class, place_in_line)
  if not class then
    return redis.call("LINDEX", q.wait, tostring(-place_in_line - 1))
  end
  return redis.call("ZRANGEBYSCORE", q.prioritized, place.whole(place.class_start(class)),
    "(" .. place.whole(place.class_start(class + 1)), "LIMIT", tostring(place_in_line), "1")[1]
end

local function class_of(found)
  return found[2] and place.class_of(found[2])
end

--- The heads of all lines that are looked at, as {class, place, id, added}.
local function heads(q)
  local found, seen = {}, {}
  local function look(class)
    if class and seen[class] then
      return
    end
    local id = at(q, class, 0)
    if id then
      found[#found + 1] = { class = class, place = 0, id = id, added = added(q, id) }
    end
    if class then
      seen[class] = true
    end
  end
  look(nil)
  local class = class_of(redis.call("ZRANGE", q.prioritized, "0", "0", "WITHSCORES"))
  for _ = 1, CLASSES do
    if not class then
      return found
    end
    look(class)
    class = class_of(redis.call("ZRANGEBYSCORE", q.prioritized, place.whole(place.class_start(class + 1)), "+inf",
      "WITHSCORES", "LIMIT", "0", "1"))
  end
  local chance = class and redis.call("ZRANDMEMBER", q.prioritized, "1", "WITHSCORES")
  if chance then
    look(class_of(chance))
  end
  return found
end

--- The next ids, as a fetch's own `candidates` gives them; so many of them as `share` says are those that have waited longest.
--- Of several that came at the same time the one of the lowest priority counts. Those of prioritized come first: what a fetch
--- cannot carry it leaves from the end, and these must not be left always.
function M.choose(q, wanted, share)
  local lines = heads(q)
  local ids, picked = {}, {}
  for _ = 1, math.min(share, wanted) do
    local first
    for _, line in ipairs(lines) do
      if line.id and (not first or line.added <= first.added) then
        first = line
      end
    end
    if not first then
      break
    end
    if first.class then   -- those of wait come first of wait anyway
      ids[#ids + 1] = first.id
      picked[first.id] = true
    end
    first.place = first.place + 1
    first.id = at(q, first.class, first.place)
    first.added = first.id and added(q, first.id)
  end
  local before = #ids
  local waiting = before < wanted and redis.call("LRANGE", q.wait, tostring(before - wanted), "-1") or {}
  for index = #waiting, 1, -1 do
    ids[#ids + 1] = waiting[index]
  end
  local from_wait = #ids
  if from_wait < wanted then
    for _, id in ipairs(redis.call("ZRANGE", q.prioritized, "0", tostring(wanted - 1))) do
      if #ids < wanted and not picked[id] then
        ids[#ids + 1] = id
      end
    end
  end
  local ends = redis.call("ZCARD", q.prioritized) == before + #ids - from_wait
  return ids, before, from_wait, ends, not ends or redis.call("LLEN", q.wait) > from_wait - before
end

return M
