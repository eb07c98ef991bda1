--- A job and its state, as they are at one moment (protocol 2.1, 3.1).
--- @key completed
--- @key failed
--- @key delayed
--- @key prioritized
--- @key active
--- @key wait
--- @key paused
--- @key waiting_children
--- @arg job_id
--- @use check state
--- @returns the state and the hash (flat, empty if there is no such job)

local hash = check.read("hash", "HGETALL", base .. job_id)
if #hash == 0 then
  return { "unknown", hash }
end
local found = state.near({
  completed = completed, failed = failed, delayed = delayed, prioritized = prioritized, active = active, wait = wait,
  paused = paused, waiting_children = waiting_children,
}, job_id)
return { found, hash }
