--- Whether a part of a job (its log, its children, its lock) is there without the job; with `act` it goes.
--- @key meta
--- @arg job_id
--- @arg part
--- @arg act
--- @use check
--- @returns 1 it stands alone | 0 it does not

-- Safe to send again: what is gone is not found again.
local TYPES = { logs = "list", dependencies = "set", processed = "hash", failed = "hash", unsuccessful = "zset" }
check.hash(meta)
local key = base .. job_id
if redis.call("EXISTS", key) == 1 or redis.call("TYPE", key .. ":" .. part).ok ~= TYPES[part] then
  return 0
end
-- "a:b:failed" may be the hash of a job of that name.
if TYPES[part] == "hash" and redis.call("HEXISTS", key .. ":" .. part, "timestamp") == 1 then
  return 0
end
if act ~= "" then
  redis.call("UNLINK", key .. ":" .. part)
end
return 1
