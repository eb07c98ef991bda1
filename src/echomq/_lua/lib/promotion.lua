--- @rare
--- @use place
--- Jobs whose time has come, out of `delayed` (protocol 3.4, step 2), in steps.

local M = {}

local STEP = 250

--- Moves up to 250 due jobs to where they can run. Returns how many, and whether more are due.
--- Membership comes first and decoration after it, so that no error can leave a job in no state.
function M.run(q, now)
  local due = redis.call("ZRANGEBYSCORE", q.delayed, "-inf", place.whole((now + 1) * place.TICK - 1),
    "LIMIT", "0", tostring(STEP + 1))
  if #due == 0 then
    return 0, false
  end
  local more = #due > STEP
  if more then
    due[#due] = nil
  end
  local priorities = {}
  for index, id in ipairs(due) do
    local found = redis.pcall("HMGET", q.base .. id, "priority", "name")
    if found.err then
      priorities[index] = 0          -- no hash: into wait, where the fetch fails it
    elseif found[1] or found[2] then
      priorities[index] = place.priority(found[1])
    end                              -- nothing there: a ghost, only taken out
  end
  for index, id in ipairs(due) do
    local priority = priorities[index]
    if priority then
      if priority > 0 then
        redis.call("ZADD", q.prioritized, place.score(priority, q.pc), id)
      else
        redis.call("LPUSH", q.wait, id)
      end
      redis.pcall("XADD", q.events, "*", "event", "waiting", "jobId", id, "prev", "delayed")
      redis.pcall("HSET", q.base .. id, "delay", "0")
    end
  end
  redis.call("ZREM", q.delayed, unpack(due))
  return #due, more
end

return M
