--- Removes a step of the jobs of a paused queue, in whatever state they are, and of its schedules (protocol 3.20); when none is
--- left, the keys that are named.
--- @key waiting_children
--- @key active
--- @key schedulers
--- @key delayed
--- @key completed
--- @key failed
--- @key prioritized
--- @key wait
--- @key paused
--- @key meta
--- @key outbox
--- @key calls
--- @arg force
--- @arg searched
--- @rest
--- @use clock check parents job_keys
--- @lane
--- @returns now, 0 | -1 the queue is not paused | -2 jobs are being run | -4 outcomes wait to be forwarded, how many jobs were removed, 1 if jobs are left or the named keys are there still

-- The named keys are what stands under the queue's name beside its jobs. A job may have been added since they were looked at:
-- so they go when there is none, in the same call.
-- What a job has beside its hash costs more to name than the hash to remove, and few have any. So as long as the caller has yet to
-- search for what is left (`searched` is empty), only those are asked for it that most likely have.
local STEP = 250      -- a job costs some 3 microseconds
local WHOLE = 3       -- so many times that, one of which all is named
local PARENT = 5      -- and as many more, one whose parent is of another queue

-- Those that wait for children first: then a child of the same queue has no parent to tell.
local SOURCES = {
  { key = waiting_children, has_more = true }, { key = active, is_list = true, has_more = true },
  { key = schedulers, are = "repeat:" }, { key = delayed }, { key = completed }, { key = failed }, { key = prioritized },
  { key = wait, is_list = true }, { key = paused, is_list = true },
}

local function left()
  return redis.call("EXISTS", waiting_children, active, schedulers, delayed, completed, failed, prioritized, wait, paused)
end

local code = 0
if check.read("hash", "HEXISTS", meta, "paused") == 0 and redis.call("EXISTS", meta) + left() > 0 then
  code = -1   -- where nothing is at all, another has obliterated it at the same time
elseif force == "" and redis.call("EXISTS", active) == 1 then
  code = -2
elseif force == "" and redis.call("EXISTS", outbox) == 1 and check.stream(outbox) > 0 then
  code = -4
end
local now, now_text = clock.read(clock_given)
local spent, removed, doomed = 0, 0, {}

--- What goes with the job at this key. A parent of another queue hears of it (8.5, hard); one of this queue goes as well.
local function let_go(key)
  spent = spent + 1
  local found = redis.pcall("HMGET", key, "parentKey", "deid")
  if found.err then
    return   -- no job
  end
  if found[1] and not (string.sub(found[1], 1, #base) == base and not string.find(found[1], ":", #base + 1, true)) then
    local readable, parent = pcall(parents.look, found[1], key, base)
    if readable and parent and parent.q.base ~= base then
      parents.child_cleaned(parent, key, base)
    end
    spent = spent + PARENT
  end
  if found[2] then
    doomed[#doomed + 1] = base .. "de:" .. found[2]
    doomed[#doomed + 1] = base .. "dn:" .. found[2]
  end
end

--- Takes ids out of a place, the oldest first, and with them what is theirs, as far as the step goes.
local function clear(source)
  local most = STEP - spent
  local ids = source.is_list and redis.pcall("LRANGE", source.key, tostring(-most), "-1")
    or redis.pcall("ZRANGE", source.key, "0", tostring(most - 1))
  if ids.err then
    redis.call("UNLINK", source.key)   -- whatever it is, no job stands there
    return
  end
  local taken, whole = 0, source.has_more or searched ~= ""
  for index = 1, #ids do
    if spent >= STEP then
      break
    end
    local key = base .. (source.are or "") .. (source.is_list and ids[#ids - index + 1] or ids[index])
    if whole then
      job_keys.name(key, doomed)
      spent = spent + WHOLE - 1
    else
      doomed[#doomed + 1] = key
    end
    let_go(key)
    taken = index
  end
  if taken > 0 and source.is_list then
    redis.call("LTRIM", source.key, "0", tostring(-taken - 1))
  elseif taken > 0 then
    redis.call("ZREMRANGEBYRANK", source.key, "0", tostring(taken - 1))
  end
  removed = removed + (source.are and 0 or taken)
end

local more = 0
if code == 0 then
  for _, source in ipairs(SOURCES) do
    if spent < STEP then
      clear(source)
    end
  end
  more = left()
  if more == 0 and spent <= STEP / 2 then
    for index = rest, #ARGV do
      doomed[#doomed + 1] = ARGV[index]
      let_go(ARGV[index])
    end
  elseif #ARGV >= rest then
    more = 1
  end
  for first = 1, #doomed, 1000 do
    redis.call("UNLINK", unpack(doomed, first, math.min(first + 999, #doomed)))
  end
end
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, code, removed, math.min(more, 1) })
