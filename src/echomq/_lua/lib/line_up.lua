--- @use check place queue_meta paused_list
--- Jobs go back into the line by somebody's wish: promoted, retried, with another priority. `q` has wait, paused, prioritized,
--- active, meta, marker, events and pc.

local M = {}

--- Looks at all that the functions below touch; raises BROKEN. Sets q.settings.
function M.look(q)
  q.settings = queue_meta.read(q.meta)
  check.list(q.wait)
  check.list(q.active)
  check.zset(q.prioritized)
  check.zset(q.marker)
  check.stream(q.events)
  check.counter(q.pc)
  if q.settings.paused then
    check.list(q.paused)
  end
end

--- The first write, one that a full memory does not refuse: a job that is there may always be moved, and the answer that
--- there is nothing to move may always be kept.
function M.begin(q)
  redis.call("XTRIM", q.events, "MAXLEN", "~", q.settings.max_events)
  if q.settings.paused then
    paused_list.take_over(q.paused, q.wait)
  end
end

--- To the end of the line, or with `first` to its front; a priority keeps to its class.
function M.put(q, id, priority, first)
  if priority > 0 then
    redis.call("ZADD", q.prioritized, place.score(priority, q.pc), id)
  else
    redis.call(first and "RPUSH" or "LPUSH", q.wait, id)
  end
end

--- Wakes a worker, unless none may fetch now.
function M.mark(q)
  if not queue_meta.closed(q.settings, q.active) then
    place.mark(q.marker)
  end
end

return M
