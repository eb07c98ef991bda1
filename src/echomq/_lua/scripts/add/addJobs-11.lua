--- Adds up to 100 jobs, in order: standard, delayed, prioritized, at the front (lifo), with an id of one's own (protocol 3.2,
--- 3.3), with a deduplication id (7.1-7.3). All are looked at before the first is added.
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
--- @arg max_size
--- @rest
--- @use clock check queue_meta place paused_list new_job one_by_one free_number
--- @lane
--- @returns now, then for each job two values: its id and 1 if it was added; its id and 0 if a job of this id was there; 2 with the id of the job that holds its deduplication id; 3 with how many jobs wait, if that is max_size ("" for none) or more

-- A job is nine arguments: name, data, opts, timestamp ("" for now), delay, due ("" or an absolute time in its place),
-- priority, more ("" or packed: lifo, de, once), id ("" for the next number).
local STRIDE = 9

local plain, all_plain = {}, true   -- which jobs go into wait as they are
local more, singly = {}, max_size ~= ""
for index = 1, count do
  local at = rest + (index - 1) * STRIDE
  plain[index] = ARGV[at + 4] == "0" and ARGV[at + 5] == "" and ARGV[at + 6] == "0"
  all_plain = all_plain and plain[index]
  local packed = ARGV[at + 7]
  if packed ~= "" then
    more[index] = cmsgpack.unpack(packed)
    singly = singly or more[index].de ~= nil or more[index].once ~= nil
  end
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
if singly then
  q.sent = string.sub(calls, 1, -#"calls" - 1) .. "sent"   -- what outboxes have sent, for as long as it may come again
  one_by_one.look(q, more, active)
end

-- Every add takes a number, whatever its id (protocol 3.2); the first write, so that a full memory refuses the add whole,
-- and the look at the counter.
local first_number = check.count_up(id, tostring(count)) - count
queue_meta.write_default(meta, settings)
if settings.paused then
  paused_list.take_over(paused, wait)
end

local reply, later, trimmed = { now_text }, false, false
local runnable
if singly then
  reply, runnable, later = one_by_one.add_each(q, {
    given = ARGV, at = rest, stride = STRIDE, count = count, more = more, max_size = tonumber(max_size),
    first_number = first_number, id = id, active = active, now = now, now_text = now_text,
  })
else
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
    new[index] = not (added_here[ids[index]] or some_taken and redis.call("EXISTS", base .. ids[index]) == 1)
    if not new[index] and ARGV[at + 8] == "" then
      ids[index], new[index] = free_number.next(base, id), true
    end
    added_here[ids[index]] = true
    if new[index] and plain[index] then
      local line = more[index] and more[index].lifo and ahead or behind
      line[#line + 1] = ids[index]
    end
  end
  if #behind > 0 then
    redis.call("LPUSH", wait, unpack(behind))
  end
  if #ahead > 0 then
    redis.call("RPUSH", wait, unpack(ahead))
  end

  runnable = #behind + #ahead > 0
  for index = 1, count do
    local at = rest + (index - 1) * STRIDE
    local job_id = ids[index]
    if new[index] then
      local timestamp, due = ARGV[at + 3], ARGV[at + 5]
      local delay_text, priority = ARGV[at + 4], ARGV[at + 6]
      local timestamp_text = timestamp ~= "" and timestamp or now_text
      if due ~= "" then
        delay_text = new_job.delay_until(due, timestamp_text, now)
      end
      new_job.store(q, job_id, ARGV[at], ARGV[at + 1], ARGV[at + 2], timestamp_text, delay_text, priority)
      if plain[index] then
        if index < count then
          redis.pcall("XADD", events, "*", "event", "waiting", "jobId", job_id)
        else
          redis.pcall("XADD", events, "MAXLEN", "~", settings.max_events, "*", "event", "waiting", "jobId", job_id)
          trimmed = true
        end
      elseif new_job.put(q, job_id, tonumber(timestamp_text), tonumber(delay_text), tonumber(priority),
        more[index] and more[index].lifo) == "delayed" then
        later = true
      else
        runnable = true
      end
    else
      redis.pcall("XADD", events, "*", "event", "duplicated", "jobId", job_id)
    end
    reply[#reply + 1] = job_id
    reply[#reply + 1] = new[index] and 1 or 0
  end
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
