--- Ends the runs of some jobs, each whole and with its own code, then takes up to `count` new ones (protocol 3.4 to 3.9).
--- @key wait
--- @key active
--- @key prioritized
--- @key delayed
--- @key failed
--- @key limiter
--- @key meta
--- @key events
--- @key marker
--- @key paused
--- @key calls
--- @key completed
--- @key stalled
--- @key id
--- @arg count number
--- @arg lock_ms
--- @arg worker
--- @arg limiter_max
--- @arg limiter_ms
--- @arg share number
--- @arg metrics_points number
--- @arg outcomes number
--- @rest
--- @use clock check queue_meta paused_list neighbours fetching place promotion leaving parents dedup retention metrics job_keys dead_letter event_log forward
--- @lane custom
--- @returns now, a code for each outcome (0 and above: done; a text: BROKEN, why nothing changed; CANCEL, the reason for which it is to end as cancelled, and nothing changed; or STORED, but what was left undone), flags, milliseconds of a rate limit, next due time, ids without a job to run, then id and hash of each job

-- An outcome is six arguments: kind, id, token, value, retention rule, more (packed, or "").
--   completed  value: the result as JSON            more.fields, more.said, more.forward
--   failed     value: the reason                    more.fields, more.attempts, more.said, more.letter, more.forward
--   retry      to where it waits, at once           more.fields, more.lifo
--   delayed    value: milliseconds                  more.fields, more.skip (no attempt is counted)
--   wait       to the front, rate limited           value: milliseconds of a limit to set, or ""
--   back       to the front, as if not fetched      value: "1" if its handler was never called
local STRIDE = 6

local token = lane .. ":" .. place.whole(number)
local q = {
  base = base, wait = wait, active = active, prioritized = prioritized, delayed = delayed, failed = failed,
  limiter = limiter, events = events, marker = marker, paused = paused, pc = base .. "pc",
  completed = completed, stalled = stalled, id = id,
}
local kept = calls_kept.find(calls, lane, number)
if kept then
  return fetching.answer_again(q, token, kept, lock_ms)
end

-- Everything that may be wrong is found before the first write.
local settings = queue_meta.read(meta)
local active_length = neighbours.look(q, settings)
check.zset(completed)
local marked = check.set(stalled) > 0
if metrics_points > 0 then
  metrics.look(base .. "metrics:completed")
  metrics.look(base .. "metrics:failed")
end

local now, now_text = clock.read(clock_given)
local lock_keys, family_keys = {}, {}
for index = 0, outcomes - 1 do
  local at = rest + index * STRIDE
  local key = base .. ARGV[at + 1]
  lock_keys[index + 1] = key .. ":lock"
  if ARGV[at] == "completed" then
    family_keys[#family_keys + 1] = key .. ":dependencies"
    family_keys[#family_keys + 1] = key .. ":unsuccessful"
  end
end
local state = leaving.survey(q, lock_keys, active_length, marked)
-- One look for all: only where some child is pending or has failed is each job asked (jobs without children are the rule).
local has_children = #family_keys > 0 and redis.call("EXISTS", unpack(family_keys)) > 0

-- The first write, so that a full memory does not refuse the rest; and the look at the events.
check.read("stream", "XTRIM", events, "MAXLEN", "~", settings.max_events)
if settings.paused then
  paused_list.take_over(paused, wait)
end

local KEEP = "-1;;"
local rules, used_rules = {}, { completed = {}, failed = {} }
local ended = { completed = 0, failed = 0 }
local runnable, freed, last_ended, promoted = false, 0, false, false

local function rule_of(text)
  local rule = rules[text]
  if not rule then
    rule = retention.rule(text)
    rules[text] = rule
  end
  return rule
end

-- Scores and ids of jobs that are on their way into a set, and that go there together. This, and the deletion of their locks,
-- is safe to do once a call: each job is in the list before it is decorated; an error in one, which pcall keeps to it, keeps
-- no job from the end of the loop below, where the lists are written; and what is written there cannot fail, since the sets
-- have been looked at. Who asks for membership before that writes them first.
local members = { completed = {}, failed = {} }

local function store_members()
  for target, set in pairs({ completed = completed, failed = failed }) do
    if #members[target] > 0 then
      redis.call("ZADD", set, unpack(members[target]))
      members[target] = {}
    end
  end
end

local said_bytes = 0   -- that values take in the events

--- Decorates an ended job, or removes it; then says so.
local function store_end(target, job_id, key, rule, value_field, value, made, parent, fields, is_cancelled)
  if rule.count == 0 then
    job_keys.delete(key)
    if parent and target == "failed" then
      parents.child_removed(parent, key)
    end
  else
    redis.call("HSET", key, value_field, value, "finishedOn", now_text, "atm", made)
    used_rules[target][rule] = true
  end
  if fields and fields[1] == "resultError" then   -- ours: who waits for the result is told why it is null
    redis.pcall("XADD", events, "*", "event", target, "jobId", job_id, value_field, value, "prev", "active",
      "resultError", fields[2])
  elseif #value > event_log.LARGEST and target == "completed" and rule.count ~= 0 then   -- ours: the job alone has it
    redis.pcall("XADD", events, "*", "event", target, "jobId", job_id, value_field, "null", "prev", "active",
      "resultBytes", place.whole(#value))
  elseif is_cancelled then   -- ours: who waits for the result is told why it failed
    redis.pcall("XADD", events, "*", "event", target, "jobId", job_id, value_field, value, "prev", "active",
      "failureKind", "cancelled")
  else
    said_bytes = said_bytes + #value
    redis.pcall("XADD", events, "*", "event", target, "jobId", job_id, value_field, value, "prev", "active")
  end
  ended[target] = ended[target] + 1
end

local undone   -- of the job at hand: what cannot be done for its neighbours, and why

--- A look at neighbours of a job that ends. What is broken there must not keep it from ending: it is left as it is, and said.
local function look_aside(what, look, ...)
  local whole, found = pcall(look, ...)
  if whole then
    return found
  end
  found = string.gsub(type(found) == "table" and found.err or found, "^BROKEN ", "")
  undone = (undone and undone .. "; " or "") .. what .. ": " .. found
end

local function finish(kind, job_id, job_token, value, index, rule, fields, attempts, said, letter, way)
  local key = base .. job_id
  undone = nil
  local job = check.fields(key, "name", "atm", "parentKey", "deid", "attemptsMade", "cancelRequested")
  if not job[1] and redis.call("EXISTS", key) == 0 then
    return -1
  end
  if kind == "completed" and has_children then
    -- Where no child can be read, none can be pending.
    if (look_aside("its children were not asked", check.set, key .. ":dependencies") or 0) > 0 then
      return -4
    end
    if (look_aside("its failed children were not asked", check.zset, key .. ":unsuccessful") or 0) > 0 then
      return -9
    end
  end
  local owned = leaving.owned(state, index, job_id, job_token)
  if owned ~= 0 then
    return owned
  end
  local is_cancelled = said and said[1] == "cancelled"
  if job[6] and not is_cancelled then
    return "CANCEL " .. job[6]
  end
  local parent = job[3] and look_aside("its parent " .. job[3] .. " was not told", parents.look, job[3], key, base)
  local policy = parent and kind == "failed" and parents.policy_of(key)
  local unique = job[4] and look_aside("deduplication id " .. job[4] .. " was not freed", dedup.look, q, job[4])
  if unique then
    look_aside("the next job of deduplication id " .. job[4] .. " was not added", dedup.look_next, q, unique)
  end
  local dead = letter and look_aside("its dead letter was not written", dead_letter.look, letter[1], key)
  local told = way and look_aside("its outcome was not forwarded", forward.look, way)
  if (letter and not dead) or (way and not told) then
    rule = rule_of(KEEP)   -- it would be nowhere; so it is kept, whatever its own rule says
  end
  local count_made = place.count(job[2] or job[5]) + 1
  q.bare = q.bare and not parent and not unique

  if not leaving.leave(q, state, job_id, job_token, fields) then
    return -3
  end
  if rule.count ~= 0 then
    local entering = members[kind]
    entering[#entering + 1] = now_text
    entering[#entering + 1] = job_id
  end
  if parent or unique then
    store_members()   -- the parent may be one of them, and a failed parent is left alone
  end
  if unique then
    local placed = dedup.pass_on(q, unique, job_id, job[4], now, now_text)
    runnable = runnable or placed == "runnable"
    has_children = has_children or unique.payload ~= nil
  end
  if dead then
    dead_letter.write(dead, letter[2], fields, now, now_text)
  end
  if told then
    forward.write(told, kind == "completed" and value or "null", lane .. "-" .. place.whole(number) .. "-" .. index, now,
      now_text)
  end
  if said then   -- an event of ours that says why it ended so: its name and fields, flat
    redis.pcall("XADD", events, "*", "event", said[1], "jobId", job_id, unpack(said, 2))
  end
  if kind == "completed" then
    if parent then
      parents.child_completed(parent, key, value, now)
    end
    store_end("completed", job_id, key, rule, "returnvalue", value, place.whole(count_made), parent, fields)
  else
    if parent then
      parents.child_failed(parent, policy, key, value, now, now_text)
    end
    store_end("failed", job_id, key, rule, "failedReason", value, place.whole(count_made), parent, nil, is_cancelled)
    if rule.count ~= 0 then
      redis.call("HDEL", key, "defa", "cancelRequested")
    end
    if count_made >= attempts and not is_cancelled then
      redis.pcall("XADD", events, "*", "event", "retries-exhausted", "jobId", job_id, "attemptsMade",
        place.whole(count_made))
    end
  end
  freed, last_ended = freed + 1, true
  return undone and "STORED, but " .. undone or 0
end

--- Out of active and to where it waits: retry, delayed, wait, back.
local function put_back(kind, job_id, job_token, value, index, more)
  local key = base .. job_id
  local job = check.fields(key, "name", "atm", "priority", "ats", "attemptsMade", "cancelRequested")
  if not job[1] and redis.call("EXISTS", key) == 0 then
    return -1
  end
  local owned = leaving.owned(state, index, job_id, job_token)
  if owned ~= 0 then
    return owned
  end
  if job[6] and kind ~= "back" then   -- it would run again, and is not to
    return "CANCEL " .. job[6]
  end
  local priority = place.priority(job[3])
  local made = place.whole(place.count(job[2] or job[5]) + 1)
  local delay = kind == "delayed" and tonumber(value)
  if kind == "delayed" and not delay then
    error("BROKEN delay " .. value, 0)
  end
  q.bare = false
  if kind == "retry" and not promoted then
    promoted = true
    if promotion.run(q, now) > 0 then
      runnable = true
    end
  end
  if not leaving.leave(q, state, job_id, job_token, more.fields) then
    return kind == "wait" and math.max(redis.call("PTTL", limiter), 0) or -3
  end
  freed, last_ended = freed + 1, false
  if kind == "delayed" then
    local due = now + delay
    redis.call("ZADD", delayed, place.due_score(delayed, due), job_id)
    if more.skip then
      redis.call("HSET", key, "delay", value)
    else
      redis.call("HSET", key, "delay", value, "atm", made)
    end
    redis.pcall("XADD", events, "*", "event", "delayed", "jobId", job_id, "delay", place.whole(due))
    return 0
  end
  if kind == "retry" then
    if priority > 0 then
      redis.call("ZADD", prioritized, place.score(priority, q.pc), job_id)
    else
      redis.call(more.lifo and "RPUSH" or "LPUSH", wait, job_id)
    end
    redis.call("HSET", key, "atm", made)
  elseif priority > 0 then
    -- They come latest first, so that their order is kept. (Protocol 3.9 puts all at one score, where their ids decide.)
    redis.call("ZADD", prioritized, place.front_score(priority, prioritized, q.pc, outcomes - index), job_id)
  else
    redis.call("RPUSH", wait, job_id)
  end
  if kind == "back" and value == "1" then
    redis.call("HSET", key, "ats", place.whole(math.max(place.count(job[4]) - 1, 0)))
  end
  redis.pcall("XADD", events, "*", "event", "waiting", "jobId", job_id, "prev", "active")
  if kind ~= "wait" or priority == 0 then
    runnable = true
  end
  if kind == "wait" then
    if value ~= "" then
      redis.call("SET", limiter, place.MANUAL, "PX", value)
      settings.limited_until = now + tonumber(value)
      redis.call("HSET", meta, "limitedUntil", place.whole(settings.limited_until))
    end
    return math.max(redis.call("PTTL", limiter), 0)
  end
  return 0
end

local nothing_more = {}

local function end_run(at, index)
  local kind = ARGV[at]
  local more = ARGV[at + 5] ~= "" and cmsgpack.unpack(ARGV[at + 5]) or nothing_more
  if kind == "completed" or kind == "failed" then
    return finish(kind, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], index, rule_of(ARGV[at + 4]), more.fields,
      more.attempts or 0, more.said, more.letter, more.forward)
  end
  return put_back(kind, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], index, more)
end

local codes = {}
for index = 1, outcomes do
  local _, code = pcall(end_run, rest + (index - 1) * STRIDE, index)
  if type(code) == "table" then
    code = code.err or "BROKEN unknown error"
  end
  codes[index] = code
end
store_members()
leaving.drop_locks(state)
if freed > 0 then
  queue_meta.write_default(meta, settings)   -- else the queue may have been obliterated, and is not begun anew
end

event_log.wrote(events, meta, said_bytes, number)

local budget = 2 * outcomes + 50
for target, set in pairs({ completed = completed, failed = failed }) do
  for rule in pairs(used_rules[target]) do
    budget = retention.trim(base, set, rule, now, budget)
  end
  if metrics_points > 0 and ended[target] > 0 then
    metrics.collect(base .. "metrics:" .. target, metrics_points, ended[target], now, now_text)
  end
end
if runnable and not queue_meta.closed(settings, active) then
  place.mark(marker)
end

local jobs, dropped = {}, {}
local taken, flags, limited_ms, next_due = 0, 0, 0
if count > 0 then
  local want = {
    count = count, token = token, lock_ms = lock_ms, worker = worker, limiter_max = tonumber(limiter_max),
    limiter_ms = limiter_ms ~= "" and limiter_ms or nil, share = share,
  }
  taken, flags, limited_ms, next_due, dropped = fetching.run(q, settings, want, now, now_text, jobs)
else
  next_due = fetching.next_due(q)
end
if taken == 0 then
  if next_due ~= "0" then
    place.mark_delayed(delayed, marker)
  end
  local waiting, ranked = redis.call("LLEN", wait), redis.call("ZCARD", prioritized)
  if waiting + ranked > 0 then
    -- Slots came free here and this worker takes nothing: another may (protocol 4 leaves them idle for seconds).
    if freed > 0 and not queue_meta.closed(settings, active) then
      place.mark(marker)
    end
  elseif last_ended and redis.call("LLEN", active) == 0 and (count == 0 or (flags == 0 and next_due == "0")) then
    redis.pcall("XADD", events, "*", "event", "drained")
  end
end

return fetching.answer({ now_text, codes, flags, limited_ms, next_due, dropped }, jobs, taken, function(reply)
  calls_kept.keep(calls, lane, number, now, now_text, reply)
end)
