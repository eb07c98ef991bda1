--- @use check
--- The keys that every fetch touches, looked at before the first write; raises BROKEN. Returns the lengths of wait,
--- prioritized and active.

local M = {}

function M.look(q, settings)
  local waiting, active = check.list(q.wait), check.list(q.active)
  local ranked = check.zset(q.prioritized)
  check.zset(q.marker)
  check.stream(q.events)
  if check.zset(q.delayed) > 0 then
    check.counter(q.pc)
  end
  if settings.paused then
    check.list(q.paused)
  end
  check.zset(q.failed)
  check.counter(q.limiter)
  return waiting, ranked, active
end

return M
