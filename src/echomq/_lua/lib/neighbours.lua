--- @use check
--- The keys that every fetch touches, looked at before the first write; raises BROKEN.

local M = {}

--- Returns the length of active. Sets q.bare when none of the keys exists that a plain queue has not: no delayed and no
--- prioritized job, no failed one, no rate window. One command then takes the place of many, here and in the fetch.
-- Whoever makes such a key later in the script sets q.bare back to false.
function M.look(q, settings)
  check.list(q.wait)
  local active = check.list(q.active)
  check.zset(q.marker)
  q.bare = redis.call("EXISTS", q.prioritized, q.delayed, q.failed, q.limiter, q.pc) == 0
  if not q.bare then
    check.zset(q.prioritized)
    check.zset(q.delayed)
    check.counter(q.pc)
    check.zset(q.failed)
    check.counter(q.limiter)
  end
  if settings.paused then
    check.list(q.paused)
  end
  return active
end

return M
