--- Takes up to `count` jobs into active, each under a lock (protocol 3.4).
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
--- @arg count number
--- @arg lock_ms
--- @arg worker
--- @arg limiter_max
--- @arg limiter_ms
--- @arg share number
--- @use clock check queue_meta paused_list neighbours fetching place
--- @lane custom
--- @returns now, codes (none), flags, milliseconds of a rate limit, next due time, ids without a job to run, then id and hash of each job

local token = lane .. ":" .. place.whole(number)
local q = {
  base = base, wait = wait, active = active, prioritized = prioritized, delayed = delayed, failed = failed,
  limiter = limiter, events = events, marker = marker, paused = paused, pc = base .. "pc",
}
if resent ~= "1" and redis.call("EXISTS", wait, prioritized, delayed, paused, q.pc) == 0 then
  return { "", {}, 0, 0, "0", {} }   -- the look of an idle worker, every few seconds: two commands, nothing to keep
end
local kept = calls_kept.find(calls, lane, number)
if kept then
  return fetching.answer_again(q, token, kept, lock_ms)
end

local settings = queue_meta.read(meta)
local now, now_text = clock.read(clock_given)
if not settings.paused and resent ~= "1" and check.list(wait) == 0 and check.zset(prioritized) == 0 then
  check.zset(delayed)
  local first = redis.call("ZRANGE", delayed, "0", "0", "WITHSCORES")
  local due = first[2] and place.due_of(first[2])
  if not due or due > now then   -- nothing but jobs for later: as above
    redis.call("DEL", q.pc)
    return { now_text, {}, 0, 0, due and place.whole(due) or "0", {} }
  end
end

neighbours.look(q, settings)
check.stream(events)
if settings.paused then
  paused_list.take_over(paused, wait)
end
local want = {
  count = count, token = token, lock_ms = lock_ms, worker = worker, limiter_max = tonumber(limiter_max),
  limiter_ms = limiter_ms ~= "" and limiter_ms or nil, share = share,
}
local jobs = {}
local taken, flags, limited_ms, next_due, dropped = fetching.run(q, settings, want, now, now_text, jobs)
if want.refused and taken == 0 then
  check.refuse(unpack(want.refused))   -- else we would go on as if no job waited
end
return fetching.answer({ now_text, {}, flags, limited_ms, next_due, dropped }, jobs, taken, function(reply)
  calls_kept.keep(calls, lane, number, now, now_text, reply)
end)
