--- @use check place queue_meta
--- A change of the queue's limits, and who is to hear of it. `q` has meta, wait, prioritized, active, marker and limits.

local M = {}

--- Looks at all that the functions below touch; raises BROKEN.
function M.look(q)
  check.hash(q.meta)
  check.stream(q.limits)
  check.list(q.wait)
  check.zset(q.prioritized)
  check.list(q.active)
  check.zset(q.marker)
end

--- Wakes a worker, if jobs wait and a worker may fetch now.
function M.mark(q)
  if redis.call("LLEN", q.wait) + redis.call("ZCARD", q.prioritized) > 0
    and not queue_meta.closed(queue_meta.read(q.meta), q.active) then
    place.mark(q.marker)
  end
end

--- Wakes all workers that a rate limit has told to wait.
function M.tell(q)
  redis.pcall("XADD", q.limits, "MAXLEN", "1", "*", "changed", "1")
  redis.call("PEXPIRE", q.limits, "60000")
end

return M
