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

local plain, all_plain = {}, true   -- which jobs go into wait as they are
for index = 1, count do
  local at = rest + (index - 1) * STRIDE
  plain[index] = ARGV[at + 4] == "0" and ARGV[at + 5] == "" and ARGV[at + 6] == "0"
  all_plain = all_plain and plain[index]
end

local settings = queue_meta.read(meta)
check.list(wait)
check.zset(marker)
check.stream(events)
if not all_plain then
  check.zset(prioritized)
  check.zset(delayed)
  check.counter(pc)
end
if settings.concurrency then
  check.list(active)
end
if settings.paused then
  check.list(paused)
end

local now, now_text = clock.read(clock_given)
local q = {
  base = base, wait = wait, prioritized = prioritized, delayed = delayed, events = events, pc = pc,
}

-- Every add takes a number, whatever its id (protocol 3.2); the first write, so that a full memory refuses the add whole,
-- and the look at the counter.
local first_number = check.count_up(id, tostring(count)) - count
queue_meta.write_default(meta, settings)
if settings.paused then
  paused_list.take_over(paused, wait)
end

local ids, keys = {}, {}
for index = 1, count do
  local given = ARGV[rest + (index - 1) * STRIDE + 8]
  ids[index] = given ~= "" and given or place.whole(first_number + index)
  keys[index] = base .. ids[index]
end
local some_taken = redis.call("EXISTS", unpack(keys)) > 0   -- one look for all; only where some id is taken is each looked at

-- Who is new, and what goes into wait as it is; then into wait at once: membership comes before decoration.
local new, added_here, ahead, behind = {}, {}, {}, {}
for index = 1, count do
  local at = rest + (index - 1) * STRIDE
  repeat
    local job_id = ids[index]
    new[index] = not (added_here[job_id] or some_taken and redis.call("EXISTS", base .. job_id) == 1)
    local next_number = not new[index] and ARGV[at + 8] == ""   -- the counter went back, with a restored snapshot perhaps
    if next_number then
      ids[index] = place.whole(redis.call("INCR", id))
    end
  until not next_number
  added_here[ids[index]] = true
  if new[index] and plain[index] then
    local line = ARGV[at + 7] == "1" and ahead or behind
    line[#line + 1] = ids[index]
  end
end
if #behind > 0 then
  redis.call("LPUSH", wait, unpack(behind))
end
if #ahead > 0 then
  redis.call("RPUSH", wait, unpack(ahead))
end

local reply = { now_text }
local runnable, later, trimmed = #behind + #ahead > 0, false, false
for index = 1, count do
  local at = rest + (index - 1) * STRIDE
  local job_id = ids[index]
  if new[index] then
    local timestamp, due = ARGV[at + 3], ARGV[at + 5]
    local delay_text, priority = ARGV[at + 4], ARGV[at + 6]
    local timestamp_text = timestamp ~= "" and timestamp or now_text
    if due ~= "" then
      delay_text = tonumber(due) > now and place.whole(math.max(0, tonumber(due) - tonumber(timestamp_text))) or "0"
    end
    new_job.store(q, job_id, ARGV[at], ARGV[at + 1], ARGV[at + 2], timestamp_text, delay_text, priority)
    if plain[index] then
      if index < count then
        redis.call("XADD", events, "*", "event", "waiting", "jobId", job_id)
      else
        redis.call("XADD", events, "MAXLEN", "~", settings.max_events, "*", "event", "waiting", "jobId", job_id)
        trimmed = true
      end
    elseif new_job.put(q, job_id, tonumber(timestamp_text), tonumber(delay_text), tonumber(priority),
      ARGV[at + 7] == "1") == "delayed" then
      later = true
    else
      runnable = true
    end
  else
    redis.call("XADD", events, "*", "event", "duplicated", "jobId", job_id)
  end
  reply[#reply + 1] = job_id
  reply[#reply + 1] = new[index] and 1 or 0
end

if runnable and not queue_meta.closed(settings, active) then
  place.mark(marker)
end
if later then
  place.mark_delayed(delayed, marker)
end
if not trimmed then
  redis.call("XTRIM", events, "MAXLEN", "~", settings.max_events)
end
return calls_kept.keep(calls, lane, number, now, now_text, reply)
