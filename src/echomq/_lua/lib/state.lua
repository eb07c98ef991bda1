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
local ENDS = "100000"   -- ids of a list that are looked at from each end, about a millisecond

--- The name of the state, "unknown" if the id stands nowhere. Raises BROKEN.
function M.of(q, id)
  for _, place in ipairs(IN_ORDER) do
    if check.read(place[2], place[3], q[place[1]], id) then
      return place[4]
    end
  end
  return "unknown"
end

--- The same, and in a list how many ids stand nearer to its tail; however long the lists are. A job deep inside a list that is
--- longer than twice ENDS is not looked for: what stands nowhere else is taken to be there, and its place is nil.
function M.near(q, id)
  local deep
  for _, place in ipairs(IN_ORDER) do
    local key = q[place[1]]
    if place[3] == "ZSCORE" then
      if check.read(place[2], place[3], key, id) then
        return place[4]
      end
    else
      local at = check.read("list", "LPOS", key, id, "RANK", "-1", "MAXLEN", ENDS)
      local length = at and redis.call("LLEN", key) or check.list(key)
      if not at and length > tonumber(ENDS) then
        at = redis.call("LPOS", key, id, "MAXLEN", ENDS)
        deep = deep or (length > 2 * tonumber(ENDS) and place[4])
      end
      if at then
        return place[4], length - 1 - at
      end
    end
  end
  return deep or "unknown"
end

return M
