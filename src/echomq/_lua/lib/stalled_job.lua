--- @use place
--- @rare
--- A job whose worker has died goes back to the front of its line, and that is counted (protocol 3.22).

local M = {}

--- A job that takes its workers with it waits, longer each time.
local function put_off(q, rules, job_id, stalls)
  local pauses = rules.pauses
  local excess = math.min(stalls - rules.max_stalled, 100)
  local pause = pauses.delay * (pauses.type == "exponential" and 2 ^ (excess - 1) or pauses.type == "linear" and excess or 1)
  pause = math.min(pause, pauses.longest)
  pause = math.floor(pause * (1 - (pauses.jitter or 0) * math.random()))
  local due = rules.now + pause
  redis.call("ZADD", q.delayed, place.due_score(q.delayed, due), job_id)
  redis.call("HSET", q.base .. job_id, "stc", place.whole(stalls), "delay", place.whole(pause))
  redis.pcall("XADD", q.events, "*", "event", "delayed", "jobId", job_id, "delay", place.whole(due))
  redis.pcall("XADD", q.events, "*", "event", "stalled", "jobId", job_id)
end

--- Takes it out of `active` and puts it back; false if there is no job of this id, or it is not in active. `q` has the keys and
--- `base`; `rules` what `now` is, and for jobs that stalled more than `max_stalled` times the `pauses`, or nil to have the next
--- fetch fail them.
function M.put_back(q, rules, job_id)
  local key = q.base .. job_id
  local job = redis.pcall("HMGET", key, "priority", "stc", "rjk", "name")
  if job.err or not (job[4] or job[1]) then
    redis.call("LREM", q.active, "-1", job_id)   -- no job of this id: nothing to run again
    return false
  end
  if redis.call("LREM", q.active, "-1", job_id) == 0 then
    return false
  end
  local stalls = place.count(job[2]) + 1
  if rules.pauses and stalls > rules.max_stalled then
    put_off(q, rules, job_id, stalls)
    return true
  end
  local priority = place.priority(job[1])
  if priority > 0 then
    redis.call("ZADD", q.prioritized, place.front_score(priority, q.prioritized, q.base .. "pc"), job_id)
  else
    redis.call("RPUSH", q.wait, job_id)
  end
  local scheduled = false
  if job[3] and stalls > rules.max_stalled then
    scheduled = redis.call("EXISTS", q.base .. "repeat:" .. job[3]) == 1
    if not scheduled then
      local known = redis.pcall("ZSCORE", q.base .. "repeat", job[3])
      scheduled = type(known) == "string"
    end
  end
  if stalls > rules.max_stalled and not scheduled then
    redis.call("HSET", key, "stc", place.whole(stalls), "defa", "job stalled more than allowable limit")
  else
    redis.call("HSET", key, "stc", place.whole(stalls))
  end
  redis.pcall("XADD", q.events, "*", "event", "waiting", "jobId", job_id, "prev", "active")
  redis.pcall("XADD", q.events, "*", "event", "stalled", "jobId", job_id)
  return true
end

return M
