--- Whether a job that nobody runs has a lock; with `act` the lock goes. While it is there the job cannot be removed or healed.
--- @key active
--- @arg job_id
--- @arg act
--- @use check
--- @returns 1 there is such a lock | 0 there is none, or the job is active; how many milliseconds it lasts (-1: for ever)

-- Safe to send again: a lock that is gone is not found again.
local lock = base .. job_id .. ":lock"
check.list(active)
local lasts = redis.call("PTTL", lock)
if lasts == -2 or redis.call("LPOS", active, job_id) then
  return { 0, 0 }
end
check.text(lock)
if act ~= "" then
  redis.call("DEL", lock)
end
return { 1, lasts }
