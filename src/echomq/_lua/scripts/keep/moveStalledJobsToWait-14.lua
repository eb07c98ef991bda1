--- The sweep: jobs in active that have lost their worker go back to the front (protocol 3.22), and finished jobs go that are not
--- to be kept any longer. One sweeper at a time; in steps.
--- @key stalled
--- @key wait
--- @key active
--- @key prioritized
--- @key check_at
--- @key meta
--- @key paused
--- @key marker
--- @key events
--- @key suspects
--- @key workers
--- @key calls
--- @key rules
--- @key outbox
--- @arg interval_ms
--- @arg max_stalled number
--- @arg confirm_ms number
--- @arg step number
--- @arg crash
--- @arg worker
--- @arg record
--- @arg lives_ms number
--- @arg last_completed
--- @arg last_failed
--- @use clock check queue_meta place paused_list stalled_job workers_seen last_rules waiting_outcomes event_log
--- @lane
--- @returns now, milliseconds until the next sweep may begin, the step that follows (0: none), how many outcomes wait in the outbox, then the ids that went back

-- Steps of one sweep: 0 begins it; -1 goes on with the marked jobs; a positive one is where marking goes on; -2 comes
-- `confirm_ms` later and puts back the jobs that still have no lock. In between, the workers of a server that was frozen or
-- restarted take their jobs again: the outage was not theirs, and must not count as a stall. With confirm_ms 0 a job is
-- put back at the first look, exactly as protocol 3.22 has it. -3 comes last, where the retention rules of the last jobs to end
-- leave something to remove.
local CHUNK = 1000
local RECOVER = 100
local CONFIRM, REMOVE = -2, -3
local MOST_REMOVED = 150   -- some 20 microseconds each
local SUSPECT_MS = "3600000"

-- For jobs that stalled more than `max_stalled` times: "" to have the next fetch fail them, or a packed back-off.
local pauses = crash and crash ~= "" and cmsgpack.unpack(crash)
local delayed = base .. "delayed"

-- Whoever begins a sweep, or asks whether it is its turn, says that it is there, and by which rules its last jobs ended:
-- "milliseconds:rule", or "" where none has since it last said so.
local known_workers = step == 0 and check.hash(workers)
if step == 0 and (last_completed or "") .. (last_failed or "") ~= "" then
  check.hash(rules)
end
local function say_who_asks(now, now_text)
  last_rules.remember(rules, last_completed, last_failed)
  if worker and worker ~= "" then
    workers_seen.renew(workers, known_workers, worker, record, lives_ms, now, now_text)
  end
end

if step == 0 then
  local guard = check.text(check_at)
  if guard then
    -- Its value says when the last sweep was. One of a worker that wants them seldom keeps nobody from sweeping in time, nor
    -- does one that says nothing, or lies in the future.
    local left, interval = redis.call("PTTL", check_at), tonumber(interval_ms)
    local now, now_text = clock.read(clock_given)
    local age = now - (tonumber(guard) or 0)
    if left >= 0 and age > -interval and age < interval then
      say_who_asks(now, now_text)
      return { "", math.min(left, math.ceil(interval - age)), 0, waiting_outcomes.count(outbox) }
    end
  end
end

local function forget_lanes(now)
  calls_kept.forget(calls, lane, now, math.max(64, math.min(1000, math.floor(redis.call("HLEN", calls) / 4))))
end

check.hash(rules)
if step == 0 and redis.call("EXISTS", active, stalled, suspects, paused) == 0 then
  -- Nothing is in flight: the sweep of an idle queue, every few seconds.
  local now, now_text = clock.read(clock_given)
  redis.call("DEL", suspects)   -- a write that a full memory does not refuse, nor then the rest
  redis.call("SET", check_at, now_text, "PX", interval_ms)
  forget_lanes(now)
  say_who_asks(now, now_text)
  workers_seen.forget(workers, known_workers, now)
  waiting_outcomes.tidy(outbox, now)
  local next_step = last_rules.overdue(base, rules, now) and REMOVE or 0
  return calls_kept.keep(calls, lane, number, now, now_text,
    { now_text, tonumber(interval_ms), next_step, waiting_outcomes.count(outbox) })
end

if step == REMOVE then
  local now, now_text = clock.read(clock_given)
  redis.call("HDEL", rules, "")   -- nothing, but a write that a full memory does not refuse, nor then the rest
  local next_step = last_rules.enforce(base, rules, now, MOST_REMOVED) and REMOVE or 0
  return calls_kept.keep(calls, lane, number, now, now_text,
    { now_text, redis.call("PTTL", check_at), next_step, waiting_outcomes.count(outbox) })
end

local settings = queue_meta.read(meta)
check.list(wait)
check.list(active)
check.zset(prioritized)
check.zset(marker)
check.stream(events)
check.set(stalled)
check.set(suspects)
check.counter(base .. "pc")
if settings.paused then
  check.list(paused)
end
if pauses then
  check.zset(delayed)
end
local now, now_text = clock.read(clock_given)
redis.call("XTRIM", events, "MAXLEN", "~", settings.max_events)   -- first, so that a full memory does not refuse the rest
if step == 0 then
  event_log.trim(events, meta)
  redis.call("SET", check_at, now_text, "PX", interval_ms)
  forget_lanes(now)
  say_who_asks(now, now_text)
  workers_seen.forget(workers, known_workers, now)
end
if settings.paused then
  paused_list.take_over(paused, wait)
end

local recovered, next_step = {}, 0

local q = {
  base = base, wait = wait, active = active, prioritized = prioritized, delayed = delayed, events = events,
}
local counting = { now = now, max_stalled = max_stalled, pauses = pauses }
local function put_back(job_id)
  if stalled_job.put_back(q, counting, job_id) then
    recovered[#recovered + 1] = job_id
  end
end

local mark_from = 0
if step == 0 or step == -1 then
  local marked = redis.call("SRANDMEMBER", stalled, tostring(CHUNK))
  if #marked > 0 then
    local lock_keys = {}
    for index, job_id in ipairs(marked) do
      lock_keys[index] = base .. job_id .. ":lock"
    end
    local locks = redis.call("MGET", unpack(lock_keys))
    local dealt, doubted = {}, {}
    for index, job_id in ipairs(marked) do
      if locks[index] then
        dealt[#dealt + 1] = job_id
      elseif confirm_ms > 0 and redis.call("SISMEMBER", suspects, job_id) == 0 then
        doubted[#doubted + 1] = job_id
        dealt[#dealt + 1] = job_id
      elseif #recovered < RECOVER then
        put_back(job_id)
        dealt[#dealt + 1] = job_id
      end
    end
    if #dealt > 0 then
      redis.call("SREM", stalled, unpack(dealt))
    end
    if #doubted > 0 then
      redis.call("SADD", suspects, unpack(doubted))
      redis.call("PEXPIRE", suspects, SUSPECT_MS)
    end
    if redis.call("SCARD", stalled) > 0 then
      next_step = -1
    end
  end
elseif step == CONFIRM then
  local doubted = redis.call("SRANDMEMBER", suspects, tostring(RECOVER))
  if #doubted > 0 then
    local lock_keys = {}
    for index, job_id in ipairs(doubted) do
      lock_keys[index] = base .. job_id .. ":lock"
    end
    local locks = redis.call("MGET", unpack(lock_keys))
    for index, job_id in ipairs(doubted) do
      if not locks[index] then
        put_back(job_id)
      end
    end
    redis.call("SREM", suspects, unpack(doubted))
    if #doubted == RECOVER then
      next_step = CONFIRM
    end
  end
else
  mark_from = step
end
if next_step == 0 and step ~= CONFIRM then
  -- From the oldest end, which only shrinks while we walk: what moves is marked twice or by the next sweep.
  local last = -1 - mark_from
  local ids = redis.call("LRANGE", active, tostring(last - CHUNK + 1), tostring(last))
  if #ids > 0 then
    redis.call("SADD", stalled, unpack(ids))
    if #ids == CHUNK then
      next_step = mark_from + CHUNK
    end
  end
  if next_step == 0 and redis.call("EXISTS", suspects) == 1 then
    next_step = CONFIRM
  end
end
if next_step == 0 and last_rules.overdue(base, rules, now) then
  next_step = REMOVE
end
if pauses and #recovered > 0 then
  place.mark_delayed(delayed, marker)
end
if #recovered > 0 and not queue_meta.closed(settings, active) then
  place.mark(marker)
end

local reply = { now_text, redis.call("PTTL", check_at), next_step, waiting_outcomes.count(outbox) }
for _, job_id in ipairs(recovered) do
  reply[#reply + 1] = job_id
end
return calls_kept.keep(calls, lane, number, now, now_text, reply)
