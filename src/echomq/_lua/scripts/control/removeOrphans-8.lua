--- Removes what is left of these jobs, at most 250, if they are what they were when they were looked at (protocol 3.28).
--- @key completed
--- @key failed
--- @key delayed
--- @key prioritized
--- @key waiting_children
--- @key meta
--- @key events
--- @key calls
--- @rest
--- @use clock check queue_meta parents job_keys dedup_keys lost_job
--- @lane
--- @returns now, how many were removed

-- Of each the caller gives the id and what it saw: the mark that lookForLost gave, for a job in no state, which nobody changes
-- but a heal (see healJobs); or "gone", where there was no job, but something that had been a job's. Nothing becomes of that by
-- itself: a job of this id that is added has its hash in the same step.
local sets = { completed, failed, delayed, prioritized, waiting_children }
for _, set in ipairs(sets) do
  check.zset(set)
end
check.stream(events)
local settings = queue_meta.read(meta)
local now, now_text = clock.read(clock_given)

local function stands(id)
  for _, set in ipairs(sets) do
    if redis.call("ZSCORE", set, id) then
      return true
    end
  end
  return false
end

--- A lock without an expiry is nobody's: no program writes one.
local function is_held(key)
  return redis.call("PTTL", key .. ":lock") > 0
end

--- Its parent no longer waits for it (8.5, soft), and its deduplication id is free.
local function let_go(id, key)
  local job = redis.call("HMGET", key, "parentKey", "deid")
  if job[1] then
    local readable, parent = pcall(parents.look, job[1], key, base)
    if readable and parent then
      parents.child_removed(parent, key)
    end
  end
  if job[2] then
    local readable, keys = pcall(dedup_keys.of, base, id, job[2])
    if readable and #keys > 0 then
      redis.call("UNLINK", unpack(keys))
    end
  end
end

redis.call("XTRIM", events, "MAXLEN", "~", settings.max_events)   -- first, so that a full memory does not refuse the rest
local removed = 0
for index = rest, #ARGV, 2 do
  local id, seen = ARGV[index], ARGV[index + 1]
  local key = base .. id
  if seen == "gone" then
    if redis.call("EXISTS", key) == 0 and not is_held(key) then
      removed = removed + math.min(redis.call("UNLINK", key .. ":lock") + job_keys.delete(key), 1)
    end
  elseif lost_job.mark(key) == seen and not is_held(key) and not stands(id) then
    let_go(id, key)
    redis.call("UNLINK", key .. ":lock")
    job_keys.delete(key)
    redis.pcall("XADD", events, "*", "event", "removed", "jobId", id, "prev", "unknown")
    removed = removed + 1
  end
end
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, removed })
