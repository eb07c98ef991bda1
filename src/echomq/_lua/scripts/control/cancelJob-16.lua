--- A job is not to run any more (docs/cancelling.md). One that is not being run fails at once, as by `moveToFinished`; for one that
--- is, the request is kept in its hash, where whoever ends or fetches it next finds it, and its worker is told.
--- @key wait
--- @key paused
--- @key active
--- @key prioritized
--- @key delayed
--- @key waiting_children
--- @key completed
--- @key failed
--- @key schedulers
--- @key id
--- @key meta
--- @key marker
--- @key events
--- @key rules
--- @key cancels
--- @key calls
--- @arg job_id
--- @arg reason
--- @arg advanced
--- @use clock check queue_meta place state next_run parents dedup job_keys retention own_rule
--- @lane
--- @returns now, 1 it has failed | 2 it is asked to stop | 0 it has ended | -1 no such job | -8 the next run of a schedule, which is to be advanced first; then come again with `advanced`

local KEEP_SECONDS = "3600"   -- of the stream: a worker that has not read an entry by then asks anew anyway
local MOST_TOLD = "1000"
local SETS = { delayed = delayed, prioritized = prioritized, ["waiting-children"] = waiting_children }

local q = {
  base = base, wait = wait, paused = paused, active = active, prioritized = prioritized, delayed = delayed,
  waiting_children = waiting_children, completed = completed, failed = failed, events = events, marker = marker, id = id,
  pc = base .. "pc",
}
local settings = queue_meta.read(meta)
check.list(wait)
check.list(paused)
check.list(active)
check.zset(prioritized)
check.zset(delayed)
check.zset(waiting_children)
check.zset(failed)
check.zset(schedulers)
check.zset(marker)
check.stream(events)
check.stream(cancels)
check.counter(q.pc)
local last_rule = check.read("hash", "HGET", rules, "failed")
local key = base .. job_id
local job = check.fields(key, "name", "parentKey", "deid", "rjk", "opts")
local at, from_tail = state.near(q, job_id)
local parent, policy, unique
if job[2] then
  parent = parents.look(job[2], key, base)
  policy = parent and parents.policy_of(key)
end
if job[3] then
  unique = dedup.look(q, job[3])
  dedup.look_next(q, unique)
end
local now, now_text = clock.read(clock_given)

--- How long it stays: by its own rule, else by that of the last job that failed, if it is known. Then it holds for this one too.
local function rule_of()
  local own = own_rule.of_failed(job[5])
  if own then
    return own
  end
  local readable, rule = pcall(retention.rule, string.match(last_rule or "", "^%d+:(.*)$") or "")
  return readable and rule or nil, readable
end

local function fail()
  local rule, is_last = rule_of()
  local kept = not rule or rule.count ~= 0
  if SETS[at] then
    redis.call("ZREM", SETS[at], job_id)
  else
    local length = redis.call("LLEN", wait)
    local direction = not from_tail and "0" or from_tail * 2 < length and "-1" or "1"
    if redis.call("LREM", wait, direction, job_id) == 0 then
      redis.call("LREM", paused, "0", job_id)
    end
  end
  if kept then
    redis.call("ZADD", failed, now_text, job_id)
    redis.call("HSET", key, "failedReason", reason, "failureKind", "cancelled", "finishedOn", now_text)
    redis.call("HSETNX", key, "stacktrace", "[]")
    if at == "delayed" then   -- it waits for no time any more, also if somebody lets it run again
      redis.call("HSET", key, "delay", "0")
    end
    redis.call("HDEL", key, "defa", "cancelRequested")
  end
  queue_meta.write_default(meta, settings)
  local placed = unique and dedup.pass_on(q, unique, job_id, job[3], now, now_text)
  redis.pcall("XADD", events, "*", "event", "cancelled", "jobId", job_id, "reason", reason)
  if parent then
    parents.child_failed(parent, policy, key, reason, now, now_text)
  end
  if not kept then
    job_keys.delete(key)
    if parent then
      parents.child_removed(parent, key)
    end
  end
  redis.pcall("XADD", events, "*", "event", "failed", "jobId", job_id, "failedReason", reason, "prev", at,
    "failureKind", "cancelled")
  if kept and rule then
    if is_last then
      redis.call("HSET", rules, "failed", now_text .. ":" .. string.match(last_rule, "^%d+:(.*)$"))
    end
    retention.trim(base, failed, rule, now, 50)
  end
  if placed == "runnable" and not queue_meta.closed(settings, active) then
    place.mark(marker)
  end
end

local function ask()
  redis.call("HSETNX", key, "cancelRequested", reason)
  redis.pcall("XADD", cancels, "MAXLEN", "~", MOST_TOLD, "*", "jobId", job_id)
  redis.call("EXPIRE", cancels, KEEP_SECONDS)
end

local code
redis.call("XTRIM", events, "MAXLEN", "~", settings.max_events)   -- first, so that a full memory does not refuse the rest
if not job[1] and redis.call("EXISTS", key) == 0 then
  code = -1
elseif at == "completed" or at == "failed" then
  code = 0
elseif at == "active" or at == "unknown" then   -- one that is nowhere may be put back into the line
  ask()
  code = 2
elseif advanced == "" and next_run.is(schedulers, job_id, job[4]) then
  code = -8
else
  fail()
  code = 1
end
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, code })
