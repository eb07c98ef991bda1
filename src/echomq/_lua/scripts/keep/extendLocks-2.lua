--- Renews the locks of running jobs (protocol 6.2), and takes a job again whose lock has expired during an outage while nobody
--- else has started it. Safe to send again as it is: it only lengthens what its own run still owns.
--- @key active
--- @key stalled
--- @arg lock_ms
--- @arg count number
--- @rest
--- @use check
--- @returns the ids that are lost: another owns them, or they are no longer in active

-- A job is three arguments: id, its token, and by what its run is known: the `ats`, `processedOn` and `timestamp` that the
-- fetch returned which gave us the token. `ats` alone would not do: a job that was removed and added again begins anew, and
-- so does one that was given back before its handler was called.
check.list(active)
check.set(stalled)
local keys = {}
for index = 0, count - 1 do
  keys[index + 1] = base .. ARGV[rest + index * 3] .. ":lock"
end
local locks = redis.call("MGET", unpack(keys))

local here
--- Whether a job without a lock is still ours: in active, and not started again since. The list is read once, if at all.
local function still_ours(id, run)
  if not here then
    here = {}
    for _, active_id in ipairs(redis.call("LRANGE", active, "0", "-1")) do
      here[active_id] = true
    end
  end
  if not here[id] then
    return false
  end
  local found = redis.pcall("HMGET", base .. id, "ats", "processedOn", "timestamp")
  return not found.err and (found[1] or "") .. ":" .. (found[2] or "") .. ":" .. (found[3] or "") == run
end

local lost, alive, renewed = {}, {}, {}
for index = 0, count - 1 do
  local at = rest + index * 3
  local id, token = ARGV[at], ARGV[at + 1]
  local lock = locks[index + 1]
  if lock == token or (not lock and still_ours(id, ARGV[at + 2])) then
    alive[#alive + 1] = id
    renewed[#renewed + 1] = { keys[index + 1], token }
  else
    lost[#lost + 1] = id
  end
end
if #alive > 0 then
  redis.call("SREM", stalled, unpack(alive))   -- first, and allowed when memory is full
  for _, lock in ipairs(renewed) do
    redis.call("SET", lock[1], lock[2], "PX", lock_ms)
  end
end
return lost
