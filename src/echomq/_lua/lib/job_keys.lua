--- @rare
--- What belongs to one job (protocol 3.19.1).

local M = {}

--- Deletes the job and all its keys but the lock. Returns how many there were. What is large is freed beside the server's work.
function M.delete(key)
  return redis.call("UNLINK", key, key .. ":logs", key .. ":dependencies", key .. ":processed", key .. ":failed",
    key .. ":unsuccessful")
end

--- Adds the names of all its keys to a list, that of the lock too.
function M.name(key, list)
  local at = #list
  list[at + 1], list[at + 2], list[at + 3], list[at + 4] = key, key .. ":lock", key .. ":logs", key .. ":dependencies"
  list[at + 5], list[at + 6], list[at + 7] = key .. ":processed", key .. ":failed", key .. ":unsuccessful"
end

return M
