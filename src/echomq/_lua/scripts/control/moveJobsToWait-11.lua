--- All that have failed, completed or are delayed go into the line, the oldest first (protocol 3.14), at most 250 a call; but
--- not the next runs of schedules.
--- @key completed
--- @key failed
--- @key delayed
--- @key wait
--- @key paused
--- @key prioritized
--- @key active
--- @key meta
--- @key marker
--- @key events
--- @key calls
--- @arg origin
--- @arg cut
--- @use clock check place next_run line_up parents run_again
--- @lane
--- @returns now, how many were moved, how many are left, the cut that the next call is to be given

-- What ends while the caller goes on is not moved a second time: the first call finds the latest end so far, and gives it back
-- as the cut for those that follow. The score of a delayed job is when it is due, and may lie anywhere: so the cut is there the
-- score of the last one that stays and how many of that score stay, the highest score at the first call, and when and at which
-- number of the queue that was. These stay:
--   what was moved by this call before, ran, and waits for its next attempt (its hash says when it was moved)
--   what was added meanwhile: it has a higher number, or an id of its own and a later time
--   what its schedule waits for: a schedule goes on when that job is run, so its next slot would be lost
local STEP = 250

local q = {
  base = base, wait = wait, paused = paused, prioritized = prioritized, active = active, meta = meta, marker = marker,
  events = events, pc = base .. "pc",
}
local is_delayed, schedulers = origin == "delayed", base .. "repeat"
local source = ({ completed = completed, failed = failed, delayed = delayed })[origin]
line_up.look(q)
check.zset(source)
check.zset(schedulers)
local now, now_text = clock.read(clock_given)
local low, stay, since, counted = "-inf", 0, now_text, nil
local high = cut
if cut == "" then
  high = redis.call("ZREVRANGE", source, "0", "0", "WITHSCORES")[2] or "0"
  counted = is_delayed and place.whole(check.counter(base .. "id"))
elseif is_delayed then
  low, stay, high, since, counted = string.match(cut, "^(%S+) (%d+) (%S+) (%d+) (%-?%d+)$")
  stay = tonumber(stay)
end
local began = tonumber(since)
local ids = redis.call("ZRANGEBYSCORE", source, low, high, "LIMIT", place.whole(stay), tostring(STEP))

--- Whether a delayed job is not to be moved.
local function stays(id, timestamp, promoted, scheduler)
  if next_run.is(schedulers, id, scheduler) or place.count(promoted) >= began then
    return true
  end
  if check.is_count(id) then
    return tonumber(id) > tonumber(counted)
  end
  return place.count(timestamp) > began
end

local moved, spent, jobs, taken = 0, 0, {}, {}
for _, id in ipairs(ids) do
  if spent >= STEP then
    break
  end
  local found = redis.pcall("HMGET", base .. id, "name", "priority", "parentKey", "timestamp", "promoted", "rjk")
  local job = { priority = 0, is_hash = not found.err, there = found.err or found[1] or found[2] }
  if job.is_hash and job.there then
    job.priority = place.priority(found[2])
    if found[3] and not is_delayed then
      local readable, parent = pcall(parents.look, found[3], base .. id, base)
      job.parent = readable and parent   -- one that cannot be read is left as it is: it must not hold up all the others
      spent = spent + 2
    end
  end
  spent = spent + 1
  if is_delayed and job.is_hash and stays(id, found[4], found[5], found[6]) then
    local score = redis.call("ZSCORE", source, id)
    low, stay = score, score == low and stay + 1 or 1
  else
    jobs[#jobs + 1], taken[#taken + 1] = job, id
  end
end
line_up.begin(q)
for index, id in ipairs(taken) do
  local job, key = jobs[index], base .. id
  if job.there then   -- else nothing but an id, which is only taken out
    line_up.put(q, id, job.priority)
    redis.pcall("XADD", events, "*", "event", "waiting", "jobId", id, "prev", origin)
    if job.is_hash and is_delayed then
      redis.call("HSET", key, "delay", "0")
    elseif job.is_hash then
      run_again.forget_end(key, origin)
    end
    if job.parent then
      parents.child_runs_again(job.parent, key, origin)
    end
    moved = moved + 1
  end
end
if #taken > 0 then
  redis.call("ZREM", source, unpack(taken))
end
if moved > 0 then
  line_up.mark(q)
end
local left = math.max(redis.call("ZCOUNT", source, low, high) - stay, 0)
if not is_delayed then
  return calls_kept.keep(calls, lane, number, now, now_text, { now_text, moved, left, high })
end
for index = 1, left > 0 and #taken or 0 do   -- else no step follows that could meet them again
  if jobs[index].is_hash and jobs[index].there then
    redis.call("HSET", base .. taken[index], "promoted", since)
  end
end
cut = low .. " " .. place.whole(stay) .. " " .. high .. " " .. since .. " " .. counted
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, moved, left, cut })
