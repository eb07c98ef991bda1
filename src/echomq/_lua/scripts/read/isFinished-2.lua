--- Whether jobs have ended, and with what (protocol 3.26). For all waiters at once.
--- @key completed
--- @key failed
--- @rest
--- @use check
--- @returns for each id: -1 (no such job), 0 (not ended), 1 with its result and why that could not be stored (or nil), or 2 with its reason and, if it was cancelled, that word; then the last entry of the event log

local answers = {}
for at = rest, #ARGV do
  local id = ARGV[at]
  local key = base .. id
  local job = redis.pcall("HMGET", key, "returnvalue", "resultError", "failedReason", "name", "failureKind")
  local answer
  if job.err then   -- no hash; a fetch that met it has put it into failed
    job = { false, false, "the key of this job is not a hash" }
  end
  if not (job[1] or job[3] or job[4]) and redis.call("EXISTS", key) == 0 then
    answer = { -1 }
  elseif check.read("sorted set", "ZSCORE", completed, id) then
    answer = { 1, job[1], job[2] }
  elseif check.read("sorted set", "ZSCORE", failed, id) then
    answer = { 2, job[3], job[5] == "cancelled" and job[5] or nil }
  else
    answer = { 0 }
  end
  answers[#answers + 1] = answer
end
local events = redis.pcall("XREVRANGE", base .. "events", "+", "-", "COUNT", "1")
answers[#answers + 1] = events[1] and events[1][1] or "0-0"
return answers
