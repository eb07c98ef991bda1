--- Removes jobs of one state that are old enough (protocol 3.18), in steps.
--- @key completed
--- @key failed
--- @key delayed
--- @key prioritized
--- @key wait
--- @key paused
--- @key active
--- @key schedulers
--- @key meta
--- @key marker
--- @key events
--- @key calls
--- @arg place_name
--- @arg skip number
--- @arg cut
--- @arg grace number
--- @arg most number
--- @use clock check place queue_meta clearing
--- @lane
--- @returns now, the ids that were removed, how many to pass over next, 1 if more follow, and the time up to which jobs are old enough

local LISTS = { wait = wait, paused = paused, active = active }
local SETS = { completed = completed, failed = failed, delayed = delayed, prioritized = prioritized }

local is_list = LISTS[place_name] ~= nil
local q = {
  base = base, place = LISTS[place_name] or SETS[place_name], schedulers = schedulers, meta = meta, events = events,
}
clearing.look(q, is_list)
if place_name == "active" then
  check.zset(marker)
  check.list(wait)
  check.zset(prioritized)
end
local now, now_text = clock.read(clock_given)
if cut == "" then
  cut = place.whole(now - grace)
end
local latest = tonumber(cut)

--- When the job was made, or was last in a worker's hands, as the protocol tells it for each place; nil where nothing says so.
local function since(job)
  if place_name == "prioritized" then
    return job.timestamp
  elseif place_name == "delayed" then
    return job.processed or job.timestamp
  end
  return job.finished or job.processed or job.timestamp
end

local ended = place_name == "completed" or place_name == "failed"
local removed, next_skip, more = clearing.step(q, is_list, skip, most or math.huge, ended and cut, function(job)
  if place_name == "active" and redis.call("EXISTS", base .. job.id .. ":lock") == 1 then
    return false
  end
  local at = since(job)
  return ended or not at or at <= latest
end)
redis.pcall("XADD", events, "*", "event", "cleaned", "count", place.whole(#removed))
if place_name == "active" and #removed > 0 and redis.call("LLEN", wait) + redis.call("ZCARD", prioritized) > 0
  and not queue_meta.closed(q.settings, active) then
  place.mark(marker)   -- slots of the queue's concurrency are free again
end
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, removed, next_skip, more, cut })
