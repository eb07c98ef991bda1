--- A job that has failed or completed runs again (protocol 3.15, as of BullMQ 6.7).
--- @key completed
--- @key failed
--- @key wait
--- @key paused
--- @key prioritized
--- @key active
--- @key meta
--- @key marker
--- @key events
--- @key calls
--- @arg job_id
--- @arg reset
--- @use clock check place queue_keys state line_up parents run_again new_job
--- @lane
--- @returns now, 0 done | -1 no such job | -3 not ended, and then its state

local q = {
  base = base, wait = wait, paused = paused, prioritized = prioritized, active = active, meta = meta, marker = marker,
  events = events, pc = base .. "pc",
}
line_up.look(q)
check.zset(completed)
check.zset(failed)
local key = base .. job_id
local job = check.fields(key, "name", "priority", "parentKey", "opts")
local parent = job[3] and parents.look(job[3], key, base)
local now, now_text = clock.read(clock_given)

local code, found = 0, ""
line_up.begin(q)
local from = redis.call("ZSCORE", completed, job_id) and "completed" or redis.call("ZSCORE", failed, job_id) and "failed"
if not (job[1] or job[2]) then
  code = -1
elseif not from then
  code, found = -3, state.near(queue_keys.of(base), job_id)
else
  local readable, opts = pcall(cjson.decode, job[4] or "")
  opts = readable and type(opts) == "table" and opts or {}
  redis.call("ZREM", from == "completed" and completed or failed, job_id)
  line_up.put(q, job_id, place.priority(job[2]), new_job.at_front(opts))
  line_up.mark(q)
  run_again.forget_end(key, from)
  if reset == "1" then
    redis.call("HDEL", key, "atm", "ats", "attemptsMade")
    if opts.expireIn then   -- its first start comes once more
      redis.call("HSET", key, "due", now_text)
    end
  end
  if parent then
    parents.child_runs_again(parent, key, from)
  end
  redis.pcall("XADD", events, "*", "event", "waiting", "jobId", job_id, "prev", from)
end
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, code, found })
