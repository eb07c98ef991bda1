--- Dead letters go back to the queue in which they failed, as new jobs: the oldest first, at most 100 or 1 MiB a call; or one.
--- @key wait
--- @key paused
--- @key meta
--- @key events
--- @key calls
--- @arg origin
--- @arg job_id
--- @arg most number
--- @use clock check queue_meta paused_list place queue_keys state line_up new_job job_keys free_number
--- @lane
--- @returns now, 0 done | -1 no such job | -3 it does not wait, and then its state, how many left the line, how many are left in it, the ids that they have now

-- Dead letters wait in `wait`. What else somebody has put there goes along, with the options that it has.
local MOST, MAX_BYTES = 100, 1048576
local MARK = '"deadLetter":{'   -- inside a text of JSON the quotes would stand behind backslashes

local settings = queue_meta.read(meta)
check.list(wait)
check.stream(events)
if settings.paused then
  check.list(paused)
end
local q = queue_keys.of(origin)
q.id = origin .. "id"
line_up.look(q)
check.counter(q.id)
local code, found = 0, ""
if job_id ~= "" then
  found = state.near(queue_keys.of(base), job_id)
  code = redis.call("EXISTS", base .. job_id) == 0 and -1 or found ~= "waiting" and -3 or 0
end
local now, now_text = clock.read(clock_given)

--- The options that the job had before, as text and as a table, and its id then.
local function before(text)
  local readable, opts = pcall(cjson.decode, text or "{}")
  if not readable or type(opts) ~= "table" then
    return "{}", {}, nil
  end
  local letter = opts.deadLetter
  if type(letter) ~= "table" then
    return text or "{}", opts, nil
  end
  local at, later = 0, string.find(text, MARK, 1, true)
  while later do
    at, later = later, string.find(text, MARK, later + 1, true)
  end
  -- Ours is the last option, and cut off as text: so the others keep what a decoder here would lose of them.
  local is_last, tail = pcall(cjson.decode, "{" .. string.sub(text, at))
  for name in pairs(is_last and tail or {}) do
    is_last = is_last and name == "deadLetter"
  end
  opts.deadLetter = nil
  local can_be_written, cut
  if is_last then
    cut = string.gsub(string.sub(text, 1, at - 1), ",%s*$", "") .. "}"
  else
    can_be_written, cut = pcall(cjson.encode, opts)   -- 1e999 can be read, and not be written
    cut = can_be_written and cut or text
  end
  return cut, opts, type(letter.id) == "string" and queue_keys.may_be_id(letter.id) and letter.id or nil
end

redis.call("XTRIM", events, "MAXLEN", "~", settings.max_events)   -- first, so that a full memory does not refuse the rest
line_up.begin(q)
if settings.paused then
  paused_list.take_over(paused, wait)
end

local ids = {}
if job_id == "" then
  local line = redis.call("LRANGE", wait, tostring(-math.min(most, MOST)), "-1")
  for index = #line, 1, -1 do
    ids[#ids + 1] = line[index]
  end
elseif code == 0 then
  ids[1] = job_id
end

local jobs, bytes = {}, 0
for index, id in ipairs(ids) do
  local job = redis.pcall("HMGET", base .. id, "name", "data", "opts")
  jobs[index] = job
  bytes = bytes + (job.err and 0 or #(job[2] or "") + #(job[3] or ""))
  if bytes >= MAX_BYTES then
    break
  end
end

--- The id that the job has now: that which it had, if it may have it and nobody else has it by now, else the next number.
local function new_id(former)
  if former and redis.call("EXISTS", origin .. former) == 0 then
    return former
  end
  return free_number.next(origin, q.id)
end

local moved = {}
for index, job in ipairs(jobs) do
  local id = ids[index]
  if not job.err and job[1] then   -- else nothing but an id, which is only taken out
    local opts, given, former = before(job[3])
    local its_id = new_id(former)
    local priority = place.priority(given.priority)
    new_job.store(q, its_id, job[1], job[2] or "{}", opts, now_text, "0", place.whole(priority))
    new_job.put(q, its_id, now, 0, priority, new_job.at_front(given))
    moved[#moved + 1] = its_id
  end
  if redis.call("LREM", wait, "-1", id) == 0 and settings.paused then
    redis.call("LREM", paused, "-1", id)
  end
  job_keys.delete(base .. id)
  redis.pcall("XADD", events, "*", "event", "removed", "jobId", id, "prev", "wait")
end
if #moved > 0 then
  line_up.mark(q)
end
local reply = { now_text, code, found, #jobs, redis.call("LLEN", wait), unpack(moved) }
return calls_kept.keep(calls, lane, number, now, now_text, reply)
