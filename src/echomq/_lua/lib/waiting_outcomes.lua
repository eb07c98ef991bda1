--- @rare
--- The outbox, a stream: what waits there to be forwarded, perhaps by the hand of a worker that has died.

local M = {}

local FORGET_AFTER_MS = 3660000   -- as lanes: nobody speaks of an entry any more that was forwarded then

--- How many outcomes wait.
function M.count(outbox)
  local found = redis.pcall("XLEN", outbox)
  return type(found) == "number" and found or 0
end

--- The highest id that it has given out, or nil.
function M.last_id(outbox)
  local found = redis.pcall("XINFO", "STREAM", outbox)
  for index = 1, #found, 2 do
    if found[index] == "last-generated-id" then
      return found[index + 1]
    end
  end
end

--- Removes a stream that has been empty for long.
function M.tidy(outbox, now)
  if M.count(outbox) > 0 or redis.call("EXISTS", outbox) == 0 then
    return
  end
  local last = M.last_id(outbox)
  if last and now - tonumber(string.match(last, "^%d+")) > FORGET_AFTER_MS then
    redis.call("DEL", outbox)
  end
end

return M
