--- @rare
--- @use check job_keys new_job place put_off free_number
--- Adds jobs one by one, each with regard to what those before it left: jobs with a deduplication id (protocol 7.1-7.3), those
--- that are sent from an outbox, and all where only so many may wait.

local M = {}

local ADDED, THERE, HELD, FULL = 1, 0, 2, 3
local FORGOTTEN = 2   -- of the sendings that are remembered, so many for each that comes: the set cannot grow by the old ones

--- Looks at what the adds will read and write; raises BROKEN.
function M.look(q, more, active)
  check.zset(q.prioritized)
  check.zset(q.delayed)
  check.counter(q.pc)
  check.list(active)
  check.zset(q.base .. "completed")
  check.zset(q.base .. "failed")
  for _, one in pairs(more) do
    if one.once then
      check.zset(q.sent)
    end
    if one.de then
      local owner = check.text(q.base .. "de:" .. one.de.id)
      if owner then
        check.hash(q.base .. owner)
        check.hash(q.base .. "dn:" .. one.de.id)
      end
    end
  end
end

--- Who holds a deduplication id, or nil. One that was to be held until its job has ended is free when that has ended, in
--- whatever way; what was kept to run after it goes with it.
local function holder(q, key, next_key)
  local owner = redis.call("GET", key)
  if not owner then
    return nil
  end
  if redis.call("PTTL", key) == -1 and (redis.call("EXISTS", q.base .. owner) == 0
    or redis.call("ZSCORE", q.base .. "completed", owner) or redis.call("ZSCORE", q.base .. "failed", owner)) then
    redis.call("DEL", key, next_key)
    return nil
  end
  return owner
end

local function hold(key, de, owner)
  if de.ttl and not de.keepLastIfActive then
    redis.call("SET", key, owner, "PX", place.whole(de.ttl))
  else
    redis.call("SET", key, owner)
  end
end

local function tell(q, de, holder_id, other_id)
  redis.pcall("XADD", q.events, "*", "event", "deduplicated", "jobId", holder_id, "deduplicationId", de.id,
    "deduplicatedJobId", other_id)
end

--- Stores the job, to be added when the owner has ended, if that runs and the job is to be kept. Returns whether it does.
local function keep_next(q, call, de, key, next_key, owner, job)
  if not de.keepLastIfActive or not redis.call("LPOS", call.active, owner) then
    return false
  end
  redis.call("DEL", next_key)
  redis.call("HSET", next_key, "name", job.name, "data", job.data, "opts", job.opts, "jid", job.id, "owner", owner)
  redis.call("PERSIST", key)
  tell(q, de, owner, job.id)
  return true
end

--- Takes a delayed owner's place. Returns whether it was delayed.
local function replace(q, de, key, next_key, owner, job)
  if redis.call("ZREM", q.delayed, owner) == 0 then
    return false
  end
  job_keys.delete(q.base .. owner)
  redis.pcall("XADD", q.events, "*", "event", "removed", "jobId", owner, "prev", "delayed")
  tell(q, de, job.id, owner)
  redis.call("DEL", next_key)
  if de.ttl and not de.extend and not de.keepLastIfActive then
    redis.call("SET", key, job.id, "KEEPTTL")
  else
    hold(key, de, job.id)
  end
  return true
end

--- A delayed owner becomes due when the job would be. Returns whether it was delayed.
local function reschedule(q, owner, job)
  if not redis.call("ZSCORE", q.delayed, owner) or redis.call("EXISTS", q.base .. owner) == 0 then
    return false
  end
  put_off.to(q, q.base .. owner, owner, job.timestamp + job.delay, job.delay_text)
  return true
end

--- What becomes of a job whose deduplication id is held: "replaced" if it takes the owner's place, else "held", or "rescheduled".
local function meet(q, call, de, key, next_key, owner, job)
  if de.replace and replace(q, de, key, next_key, owner, job) then
    return "replaced"
  end
  if keep_next(q, call, de, key, next_key, owner, job) or de.replace then
    return "held"
  end
  if de.extend and de.ttl then
    hold(key, de, owner)
  end
  tell(q, de, owner, job.id)
  return de.reschedule and reschedule(q, owner, job) and "rescheduled" or "held"
end

--- Whether this sending was answered before: the job may have run and be gone by now.
local function was_sent(q, call, once)
  local until_when = redis.call("ZSCORE", q.sent, once.id)
  return until_when and tonumber(until_when) > call.now
end

--- Remembers a sending for its time, and forgets some whose time is up.
local function remember(q, call, once)
  for _, old in ipairs(redis.call("ZRANGEBYSCORE", q.sent, "-inf", call.now_text, "LIMIT", "0", FORGOTTEN)) do
    redis.call("ZREM", q.sent, old)
  end
  redis.call("ZADD", q.sent, place.whole(call.now + once.ttl), once.id)
  if redis.call("PTTL", q.sent) < once.ttl then
    redis.call("PEXPIRE", q.sent, place.whole(once.ttl))
  end
end

--- The arguments of the job at this index, with the id that it gets: its own, or a number that no job has.
local function job_of(q, call, index)
  local at = call.at + (index - 1) * call.stride
  local given = call.given
  local id, there = given[at + 8], false
  if id ~= "" then
    there = redis.call("EXISTS", q.base .. id) == 1
  else
    id = place.whole(call.first_number + index)
    if redis.call("EXISTS", q.base .. id) == 1 then
      id = free_number.next(q.base, call.id)
    end
  end
  local timestamp_text = given[at + 3] ~= "" and given[at + 3] or call.now_text
  local delay_text = given[at + 4]
  if given[at + 5] ~= "" then
    delay_text = new_job.delay_until(given[at + 5], timestamp_text, call.now)
  end
  return {
    id = id, there = there, name = given[at], data = given[at + 1], opts = given[at + 2], timestamp_text = timestamp_text,
    timestamp = tonumber(timestamp_text), delay_text = delay_text, delay = tonumber(delay_text), priority_text = given[at + 6],
    priority = tonumber(given[at + 6]), more = call.more[index] or {},
  }
end

--- Decides what becomes of a job, and does what is to be done to the one that is there. Returns its code and the id to answer
--- with; by how many the queue grows when it is added; whether the job that is there was moved.
local function decide(q, call, job, size)
  if job.there then
    redis.pcall("XADD", q.events, "*", "event", "duplicated", "jobId", job.id)
    return THERE, job.id
  end
  local once = job.more.once
  if once and was_sent(q, call, once) then
    return THERE, job.id
  end
  local de = job.more.de
  local key, next_key, owner
  if de then
    key, next_key = q.base .. "de:" .. de.id, q.base .. "dn:" .. de.id
    owner = holder(q, key, next_key)
  end
  if owner then
    local became = meet(q, call, de, key, next_key, owner, job)
    if became == "replaced" then
      return ADDED, job.id, 0
    end
    return HELD, owner, 0, became == "rescheduled"
  end
  if size and size >= call.max_size then
    return FULL, place.whole(size)
  end
  if de then
    hold(key, de, job.id)
  end
  return ADDED, job.id, 1
end

--- Adds what is to be added. Returns the reply; whether some job can run now; whether the delayed ones have changed.
function M.add_each(q, call)
  local reply, runnable, later = { call.now_text }, false, false
  local size = call.max_size
    and redis.call("LLEN", q.wait) + redis.call("ZCARD", q.prioritized) + redis.call("ZCARD", q.delayed)
  for index = 1, call.count do
    local job = job_of(q, call, index)
    local code, id, grown, moved = decide(q, call, job, size)
    if job.more.once and code ~= FULL then
      remember(q, call, job.more.once)
    end
    later = later or moved
    if code == ADDED then
      size = size and size + grown
      new_job.store(q, id, job.name, job.data, job.opts, job.timestamp_text, job.delay_text, job.priority_text,
        job.more.de and { "deid", job.more.de.id })
      local kind = new_job.put(q, id, job.timestamp, job.delay, job.priority, job.more.lifo)
      runnable, later = runnable or kind == "runnable", later or kind == "delayed"
    end
    reply[#reply + 1] = id
    reply[#reply + 1] = code
  end
  return reply, runnable, later
end

return M
