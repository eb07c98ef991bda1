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
-- as the cut for those that follow. Of delayed jobs all are moved, whenever they were added, but those that their schedules wait
-- for: a schedule goes on when that job is run, so its next slot would be lost. There the cut is the score of the last one
-- that stays, and how many of that score stay.
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
local ids
local low, stay = string.match(cut, "^(%S+) (%d+)$")
low, stay = low or "-inf", tonumber(stay or "0")
if is_delayed then
  ids = redis.call("ZRANGEBYSCORE", source, low, "+inf", "LIMIT", place.whole(stay), tostring(STEP))
else
  if cut == "" then
    cut = redis.call("ZREVRANGE", source, "0", "0", "WITHSCORES")[2] or "0"
  end
  ids = redis.call("ZRANGEBYSCORE", source, "-inf", cut, "LIMIT", "0", tostring(STEP))
end
local now, now_text = clock.read(clock_given)

local moved, spent, jobs, taken = 0, 0, {}, {}
for _, id in ipairs(ids) do
  if spent >= STEP then
    break
  end
  local found = redis.pcall("HMGET", base .. id, "name", "priority", "parentKey", "rjk")
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
  if is_delayed and job.is_hash and next_run.is(schedulers, id, found[4]) then
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
local left
if is_delayed then
  left, cut = redis.call("ZCOUNT", source, low, "+inf") - stay, low .. " " .. place.whole(stay)
else
  left = redis.call("ZCOUNT", source, "-inf", cut)
end
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, moved, left, cut })
