--- @rare
--- @use check place
--- Finished jobs a minute (protocol 10). All finishes of a call have one time, so they are counted at once.

local M = {}

function M.look(key)
  check.hash(key)
  check.list(key .. ":data")
  for index, field in ipairs(check.fields(key, "count", "prevTS", "prevCount")) do
    if field and not check.is_count(field) then
      error("BROKEN " .. key .. " has a field " .. index .. " that is no whole number", 0)
    end
  end
end

function M.collect(key, points, finished, now, now_text)
  local before = redis.call("HINCRBY", key, "count", tostring(finished)) - finished
  local state = redis.call("HMGET", key, "prevTS", "prevCount")
  if not state[1] then
    redis.call("HSET", key, "prevTS", now_text, "prevCount", "0")
    return
  end
  local minutes = math.floor(now / 60000) - math.floor(tonumber(state[1]) / 60000)
  minutes = math.min(minutes, points)
  if minutes <= 0 then
    return
  end
  local data = key .. ":data"
  redis.call("LPUSH", data, place.whole(before - tonumber(state[2] or "0")))
  local empty, zeros = minutes - 1, {}
  while empty > 0 do
    local step = math.min(empty, 1000)
    for index = 1, step do
      zeros[index] = "0"
    end
    redis.call("LPUSH", data, unpack(zeros, 1, step))
    empty = empty - step
  end
  redis.call("LTRIM", data, "0", tostring(points - 1))
  redis.call("HSET", key, "prevCount", place.whole(before), "prevTS", now_text)
end

return M
