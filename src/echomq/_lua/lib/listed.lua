--- @use check
--- How many jobs a list holds. Only reads.

local M = {}

--- Its length, without the one marker ("0:…") that versions before 5 may have left at its tail.
function M.count(list)
  local length = check.list(list)
  if length > 0 and string.sub(redis.call("LINDEX", list, "-1"), 1, 2) == "0:" then
    return length - 1
  end
  return length
end

return M
