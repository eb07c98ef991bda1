--- @use place
--- The job of the slot that a schedule waits for (protocol 3.24). What is done to many jobs at once passes it over.

local M = {}

--- Whether a job is that. `scheduler` is the schedule that its hash names, if it names one.
function M.is(schedulers, job_id, scheduler)
  local due = scheduler and redis.call("ZSCORE", schedulers, scheduler)
  return due and job_id == "repeat:" .. scheduler .. ":" .. place.whole(tonumber(due))
end

return M
