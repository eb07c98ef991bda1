--- Adds up to 250 jobs, in order, all or none: standard, delayed, prioritized, at the front (lifo), with an id of one's own (protocol 3.2, 3.3).
--- @key wait
--- @key prioritized
--- @key delayed
--- @key active
--- @key id
--- @key pc
--- @key meta
--- @key events
--- @key marker
--- @key paused
--- @key calls
--- @arg count number
--- @rest
--- @use clock check queue_meta place paused_list new_job
--- @lane
--- @returns now, then for each job: its id, and 1 if it was added or 0 if a job of this id was there

-- A job is nine arguments: name, data, opts, timestamp ("" for now), delay, due ("" or an absolute time in its place),
-- priority, lifo ("1" or ""), id ("" for the next number).
local STRIDE = 9

local settings = queue_meta.read(meta)
check.list(wait)
check.list(active)
check.zset(prioritized)
check.zset(delayed)
check.zset(marker)
check.stream(events)
check.counter(id)
check.counter(pc)
if settings.paused then
  check.list(paused)
end

local now, now_text = clock.read(clock_given)
local q = {
  base = base, wait = wait, prioritized = prioritized, delayed = delayed, events = events, pc = pc,
}
local reply = { now_text }
local runnable, later = false, false

for index = 0, count - 1 do
  local at = rest + index * STRIDE
  local timestamp, due, job_id = ARGV[at + 3], ARGV[at + 5], ARGV[at + 8]
  local delay, priority = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 6])
  local next_id = redis.call("INCR", id)
  local added = true
  if job_id == "" then
    job_id = place.whole(next_id)
    while redis.call("EXISTS", base .. job_id) == 1 do   -- the counter went back, with a restored snapshot perhaps
      job_id = place.whole(redis.call("INCR", id))
    end
  else
    added = redis.call("EXISTS", base .. job_id) == 0
  end
  if index == 0 then
    queue_meta.write_default(meta, settings)
    if settings.paused then
      paused_list.take_over(paused, wait)
    end
  end
  if added then
    local timestamp_text = timestamp ~= "" and timestamp or now_text
    if due ~= "" then
      delay = tonumber(due) > now and math.max(0, tonumber(due) - tonumber(timestamp_text)) or 0
    end
    new_job.store(q, job_id, ARGV[at], ARGV[at + 1], ARGV[at + 2], timestamp_text, place.whole(delay), ARGV[at + 6])
    if new_job.put(q, job_id, tonumber(timestamp_text), delay, priority, ARGV[at + 7] == "1") == "delayed" then
      later = true
    else
      runnable = true
    end
  else
    redis.call("XADD", events, "*", "event", "duplicated", "jobId", job_id)
  end
  reply[#reply + 1] = job_id
  reply[#reply + 1] = added and 1 or 0
end

if runnable and not queue_meta.closed(settings, active) then
  place.mark(marker)
end
if later then
  place.mark_delayed(delayed, marker)
end
redis.call("XTRIM", events, "MAXLEN", "~", settings.max_events)
return calls_kept.keep(calls, lane, number, now, now_text, reply)
