--- @use check
--- In which state a job is: where its id stands decides, and nothing else (protocol 3.1). Only reads.

local M = {}

local IN_ORDER = {
  { "completed", "sorted set", "ZSCORE", "completed" },
  { "failed", "sorted set", "ZSCORE", "failed" },
  { "delayed", "sorted set", "ZSCORE", "delayed" },
  { "prioritized", "sorted set", "ZSCORE", "prioritized" },
  { "active", "list", "LPOS", "active" },
  { "wait", "list", "LPOS", "waiting" },
  { "paused", "list", "LPOS", "waiting" },
  { "waiting_children", "sorted set", "ZSCORE", "waiting-children" },
}

--- The name of the state, "unknown" if the id stands nowhere. Raises BROKEN.
function M.of(q, id)
  for _, place in ipairs(IN_ORDER) do
    if check.read(place[2], place[3], q[place[1]], id) then
      return place[4]
    end
  end
  return "unknown"
end

return M
