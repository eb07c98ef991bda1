--- @rare
--- What belongs to one job (protocol 3.19.1).

local M = {}

--- Deletes the job and all its keys but the lock. Returns how many there were.
function M.delete(key)
  return redis.call("DEL", key, key .. ":logs", key .. ":dependencies", key .. ":processed", key .. ":failed",
    key .. ":unsuccessful")
end

return M
