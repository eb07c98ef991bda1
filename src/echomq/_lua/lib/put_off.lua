--- @rare
--- @use place
--- A delayed job becomes due at another moment.

local M = {}

--- Moves a job among the delayed ones; the caller has checked the keys, and marks the earliest. `q` has `delayed` and `events`;
--- `delay_text` is the delay that its hash is to have.
function M.to(q, key, job_id, due, delay_text)
  local score = place.due_score(q.delayed, due)   -- with the job still among the others, as the protocol has it
  redis.call("HSET", key, "delay", delay_text)
  local opts = redis.call("HGET", key, "opts")
  if opts and string.find(opts, '"expireIn"', 1, true) then   -- which counts from then on, and the options name another moment
    redis.call("HSET", key, "due", place.whole(due))
  end
  redis.call("ZADD", q.delayed, score, job_id)
  redis.pcall("XADD", q.events, "*", "event", "delayed", "jobId", job_id, "delay", place.whole(due))
end

return M
