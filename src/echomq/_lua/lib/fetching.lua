--- @use place promotion queue_meta fair_share
--- Takes jobs into `active`, each under a lock (protocol 3.4). Limits hold as if the jobs came one by one.

local M = {}

local MAX_BYTES = 1048576
M.PAUSED, M.MAXED, M.LIMITED, M.MORE_DUE, M.LAST = 1, 2, 4, 8, 16

--- The next ids in order of service, still where they are: those of wait, then those of prioritized. Also how many come
--- before those of wait (none), how many up to the last of wait, whether prioritized ends with them, and whether more wait.
local function candidates(q, wanted)
  local waiting = redis.call("LRANGE", q.wait, tostring(-wanted - 1), "-1")   -- one more than wanted, to see whether it is there
  local ids = {}
  for index = #waiting, 1, -1 do
    ids[#ids + 1] = waiting[index]
  end
  if #ids > wanted then
    ids[#ids] = nil
    return ids, 0, wanted, false, true
  end
  local from_wait = #ids
  if q.bare then
    return ids, 0, from_wait, false, false
  end
  local ranked = redis.call("ZRANGE", q.prioritized, "0", tostring(wanted - from_wait))
  for index = 1, math.min(#ranked, wanted - from_wait) do
    ids[#ids + 1] = ranked[index]
  end
  return ids, 0, from_wait, #ranked < wanted - from_wait, #ranked > wanted - from_wait
end

--- How many jobs the rate window still admits, and the milliseconds until it opens again (0 if it is open).
local function window(q, settings, limiter_max, now)
  local max = settings.max or limiter_max
  if not max then
    if settings.limited_until and now < settings.limited_until and redis.call("GET", q.limiter) == place.MANUAL then
      return 0, math.max(redis.call("PTTL", q.limiter), 1), nil
    end
    return math.huge, 0, nil
  end
  local used = tonumber(redis.call("GET", q.limiter) or "0") or 0
  if used >= max then
    local left = redis.call("PTTL", q.limiter)
    if left > 0 then
      return 0, left, max
    elseif left == 0 then
      redis.call("DEL", q.limiter)
      used = 0
    else
      return math.huge, 0, max   -- without an expiry the counter says nothing (protocol 3.4, step 3)
    end
  end
  return max - used, 0, max
end

--- Whether a job whose hash says so has really ended: then its id stands in the line once too often.
local function has_ended(q, id)
  return type(redis.pcall("ZSCORE", q.base .. "completed", id)) == "string"
    or type(redis.pcall("ZSCORE", q.failed, id)) == "string"
end

--- Takes the lock of a job that was put into active. False, and it is out again, if it is there already and being run: the
--- id stood in the line twice, and what another call has taken runs once. Any other lock is left of an earlier job of this id.
local function take_lock(q, id, want)
  local key = q.base .. id .. ":lock"
  if not redis.call("SET", key, want.token, "PX", want.lock_ms, "NX") then
    if #redis.call("LPOS", q.active, id, "COUNT", "2") > 1 then
      redis.call("LREM", q.active, "1", id)
      return false
    end
    redis.call("SET", key, want.token, "PX", want.lock_ms)
  end
  return true
end

--- Moves up to `wanted` jobs into active and adds `id, hash` of each to `reply`.
--- want: count, token, lock_ms, worker, limiter_max, limiter_ms, share (nil, or how many are to be those that have waited
--- longest). Sets want.refused where a right to read jobs is missing. Returns how many, flags, milliseconds of the
--- rate limit, the next due time (text, "0" if none), and ids that had no job to run.
function M.run(q, settings, want, now, now_text, reply)
  local flags = 0
  if not q.bare then
    local promoted, more_due = promotion.run(q, now)
    if more_due then
      flags = flags + M.MORE_DUE
    end
    if promoted > 0 and not queue_meta.closed(settings, q.active) then
      place.mark(q.marker)
    end
  end
  local admitted, limited_ms, max = window(q, settings, want.limiter_max, now)
  local wanted = math.min(want.count, admitted)
  if limited_ms > 0 then
    flags = flags + M.LIMITED
  end
  if settings.paused then
    flags = flags + M.PAUSED
    wanted = 0
  elseif settings.concurrency then
    local slots = settings.concurrency - redis.call("LLEN", q.active)
    if slots <= 0 then
      flags = flags + M.MAXED
    end
    wanted = math.min(wanted, slots)
  end

  local taken, counted, dropped = 0, 0, {}
  if wanted > 0 then
    local ids, before_wait, from_wait, ends, more
    if want.share and not q.bare then
      ids, before_wait, from_wait, ends, more = fair_share.choose(q, wanted, want.share)
    else
      ids, before_wait, from_wait, ends, more = candidates(q, wanted)
    end
    local jobs, starts, deferred, broken, bytes, last = {}, {}, {}, {}, 0, 0
    local seen, twice = {}, {}
    for index, id in ipairs(ids) do
      twice[index] = seen[id]   -- an id that stands there twice is one job, and runs once
      seen[id] = true
      local hash = not twice[index] and redis.pcall("HGETALL", q.base .. id) or {}
      if hash.err and not string.find(hash.err, "WRONGTYPE", 1, true) then
        want.refused = { hash.err, "HGETALL", q.base .. id, "hash" }   -- a right that we lack: the job stays in line
        break
      elseif hash.err then
        broken[index] = true
      elseif #hash > 0 then
        local size, finished, before = 0, false, 0
        for at = 1, #hash, 2 do
          local field, value = hash[at], hash[at + 1]
          size = size + #value
          if field == "ats" then
            before = place.count(value)
          elseif field == "defa" then
            deferred[index] = true
          elseif field == "finishedOn" then
            finished = true
          end
        end
        if not (finished and has_ended(q, id)) then
          jobs[index], starts[index] = hash, before + 1
          bytes = bytes + size
        end
      end
      last = index
      if bytes >= MAX_BYTES then
        break
      end
    end
    if last > 0 then
      local moved, lost_waiting, lost_ranked = {}, {}, {}
      for index = 1, last do
        if jobs[index] then
          moved[#moved + 1] = ids[index]
        end
        if index > from_wait or index <= before_wait then
          lost_ranked[#lost_ranked + 1] = ids[index]
        else
          lost_waiting[#lost_waiting + 1] = ids[index]
        end
      end
      -- The first write, so that a full memory refuses the fetch whole.
      local at_once = last == 1 and #moved == 1 and #lost_waiting == 1
      if at_once then
        redis.call("RPOPLPUSH", q.wait, q.active)
      elseif #moved > 0 then
        redis.call("LPUSH", q.active, unpack(moved))
      end
      for index = 1, last do
        local id = ids[index]
        if broken[index] then   -- what stands there is no job; once in failed it is not fetched again and again
          redis.call("ZADD", q.failed, now_text, id)
          redis.pcall("XADD", q.events, "*", "event", "failed", "jobId", id,
            "failedReason", "the key of this job is not a hash", "prev", "waiting")
          dropped[#dropped + 1] = id
        elseif not jobs[index] and not twice[index] and string.sub(id, 1, 2) ~= "0:" then
          dropped[#dropped + 1] = id
        end
      end
      if #lost_waiting > 0 and not at_once then
        redis.call("LTRIM", q.wait, "0", tostring(-#lost_waiting - 1))
      end
      if #lost_ranked > 0 then
        redis.call("ZREM", q.prioritized, unpack(lost_ranked))
      end
      for index = 1, last do
        local hash, id = jobs[index], ids[index]
        if hash and not take_lock(q, id, want) then
          dropped[#dropped + 1] = id
        elseif hash then
          local key = q.base .. id
          local starts_text = place.whole(starts[index])
          redis.pcall("XADD", q.events, "*", "event", "active", "jobId", id, "prev", "waiting")
          if want.worker ~= "" then
            redis.call("HSET", key, "processedOn", now_text, "ats", starts_text, "pb", want.worker)
          else
            redis.call("HSET", key, "processedOn", now_text, "ats", starts_text)
          end
          local size = #hash
          hash[size + 1], hash[size + 2] = "ats", starts_text
          hash[size + 3], hash[size + 4] = "processedOn", now_text
          reply[#reply + 1] = id
          reply[#reply + 1] = hash
          taken = taken + 1
          if not deferred[index] then
            counted = counted + 1
          end
        end
      end
    end
    if taken > 0 and not more and last == #ids and flags < M.MORE_DUE then
      flags = flags + M.LAST
    end
    if ends and last == #ids then
      redis.call("DEL", q.pc)   -- nothing prioritized is left beyond these: ties may count from the start again
    end
  end

  if taken == 0 and limited_ms > 0 and redis.call("LLEN", q.wait) + redis.call("ZCARD", q.prioritized) == 0 then
    flags = flags + M.LAST   -- the window is shut, and nobody waits for it
  end
  if taken > 0 then
    if max and counted > 0 then
      local used = redis.call("INCRBY", q.limiter, tostring(counted))
      if used == counted then
        redis.call("PEXPIRE", q.limiter, want.limiter_ms or place.whole(settings.duration or 1000))
      end
    end
    redis.call("ZADD", q.marker, "0", "0")   -- wakes the next worker, whatever is left (protocol 3.4, 7f)
  end
  return taken, flags, limited_ms, M.next_due(q), dropped
end

--- When the next delayed job becomes due, as text; "0" if there is none.
function M.next_due(q)
  local first = not q.bare and redis.call("ZRANGE", q.delayed, "0", "0", "WITHSCORES")
  return first and first[2] and place.whole(place.due_of(first[2])) or "0"
end

local HEAD = 6   -- now, codes, flags, milliseconds of a limit, next due time, dropped ids; then the jobs

--- Completes a reply: `keep` gets it with the ids of the jobs, the caller with ids and hashes.
function M.answer(reply, jobs, taken, keep)
  for index = 1, taken do
    reply[HEAD + index] = jobs[index * 2 - 1]
  end
  keep(reply)
  for index = 1, taken * 2 do
    reply[HEAD + index] = jobs[index]
  end
  return reply
end

--- Gives what is kept of a fetch once more: the jobs that are still of this very fetch. Where the lock has expired meanwhile
--- and nobody has started the job again, it is taken again: its worker has been away, not dead.
local function again(q, token, ids, reply, lock_ms)
  for _, id in ipairs(ids) do
    local key = q.base .. id
    local lock = redis.pcall("GET", key .. ":lock")
    if not lock and redis.pcall("HGET", key, "processedOn") == reply[1]
      and type(redis.pcall("LPOS", q.active, id)) == "number" then
      redis.call("DEL", key .. ":lock")   -- first, so that a full memory does not refuse the rest
      redis.call("SET", key .. ":lock", token, "PX", lock_ms)
      lock = token
    end
    local hash = lock == token and redis.pcall("HGETALL", key)
    if hash and not hash.err then
      reply[#reply + 1] = id
      reply[#reply + 1] = hash
    end
  end
  return reply
end

--- The reply to a call that is made again, from what was kept of it.
function M.answer_again(q, token, kept, lock_ms)
  local reply, ids = {}, {}
  for index, part in ipairs(kept) do
    if index <= HEAD then
      reply[index] = part
    else
      ids[index - HEAD] = part
    end
  end
  return again(q, token, ids, reply, lock_ms)
end

return M
