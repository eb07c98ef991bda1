--- @rare
--- @use check
--- The list that BullMQ 5 keeps the waiting jobs of a paused queue in (protocol 3.16). We never write it; while a queue
--- is paused we take its jobs over into `wait`, in steps, so that neither side's next rename can destroy a list.

local M = {}

local STEP = 1000
local DAY = "86400"

--- Notes that a BullMQ 5 is about, whose renames may have destroyed lists before: workers look for lost jobs while this lasts.
local function note(paused)
  local prefix, queue = string.match(paused, "^(.*):([^:]*):paused$")
  redis.call("SET", prefix .. "x:" .. queue .. ":v5", "1", "EX", DAY)
end

--- Moves a step of `paused` to the tail of `wait`. Returns how many are left.
function M.take_over(paused, wait)
  local length = check.list(paused)
  if length == 0 then
    return 0
  end
  if check.list(wait) == 0 then
    redis.call("RENAME", paused, wait)
    note(paused)
    return 0
  end
  local ids = redis.call("LRANGE", paused, "0", tostring(STEP - 1))
  redis.call("RPUSH", wait, unpack(ids))
  redis.call("LTRIM", paused, tostring(STEP), "-1")
  note(paused)
  return length - #ids
end

return M
