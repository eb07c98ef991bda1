--- What a job that stands in no state is known by, from the moment when it was looked for to the one when it is put back.

local M = {}

--- Changes with whatever may happen to the job: with each run, with each heal, and if it is removed and added anew. "" for
--- a hash that is no whole job, nil for one that is none at all. Only reads.
function M.mark(key)
  local found = redis.pcall("HMGET", key, "name", "data", "opts", "timestamp", "ats", "processedOn", "atm", "stc", "healed")
  if found.err then
    return nil
  end
  if found[1] and found[2] and found[3] and found[4] then
    local parts = {}
    for index = 4, 9 do
      parts[#parts + 1] = found[index] or ""
    end
    return table.concat(parts, ":")
  end
  if found[1] or found[2] or found[3] or found[4] or found[5] or found[6] then
    return ""
  end
  return nil
end

return M
