--- Drops the lines of a job's log but the last ones (protocol 3.21), at most 1,000 a call; all of them at once.
--- @key calls
--- @arg job_id
--- @arg keep number
--- @use clock check
--- @lane
--- @returns now, how many lines are still to be dropped, or -1 if there is no such job

local STEP = 1000

local logs = base .. job_id .. ":logs"
local left = check.hash(base .. job_id) == 0 and -1 or math.max(check.list(logs) - keep, 0)
local now, now_text = clock.read(clock_given)

redis.call("HDEL", calls, "")   -- there is none: a write that a full memory does not refuse, and so not the record either
if left > 0 and keep == 0 then
  redis.call("UNLINK", logs)
  left = 0
elseif left > 0 then
  local step = math.min(left, STEP)
  redis.call("LTRIM", logs, tostring(step), "-1")
  left = left - step
end
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, left })
