--- Writes what is told of jobs that are there: their progress, lines of their logs, other data (protocol 3.21). For many at once.
--- @key meta
--- @key events
--- @key active
--- @key calls
--- @rest
--- @use clock check queue_meta event_log place
--- @lane
--- @returns now, and for each -1 no such job | -6 its run is over | a text that says what is broken | else how many lines its log has (0 for what is no line)

-- Of each: what it is ("progress", "data" or "log"), the job's id, the value, how many lines its log keeps, the token of the run
-- that tells it, and by what that run is known (extendLocks); both empty where no run does.
local PARTS = 6
local STEP = 1000   -- lines that one call cuts off a log that has grown longer elsewhere

--- Whether the run that tells it still has the job: under its lock, or without one, as after an outage, while nobody else has
--- started it.
local function runs(id, token, run)
  local lock = redis.pcall("GET", base .. id .. ":lock")
  if lock then
    return lock == token
  end
  if not redis.call("LPOS", active, id) then
    return false
  end
  local found = redis.call("HMGET", base .. id, "ats", "processedOn", "timestamp")
  return (found[1] or "") .. ":" .. (found[2] or "") .. ":" .. (found[3] or "") == run
end

--- Why nothing can be written: a code or a text; nil if all is well.
local function hindrance(what, id, token, run)
  if check.hash(base .. id) == 0 then
    return -1
  elseif token ~= "" and not runs(id, token, run) then
    return -6
  elseif what == "log" then
    check.list(base .. id .. ":logs")
  end
  return nil
end

local settings = queue_meta.read(meta)
check.stream(events)
check.list(active)
local answers = {}
for at = rest, #ARGV, PARTS do
  local fine, why = pcall(hindrance, ARGV[at], ARGV[at + 1], ARGV[at + 4], ARGV[at + 5])
  answers[#answers + 1] = why or (fine and 0)
end
local now, now_text = clock.read(clock_given)

local said_bytes = 0   -- that values take in the events
redis.call("HDEL", calls, "")   -- there is none: a write that a full memory does not refuse, nor then what a running job tells
for index = 1, #answers do
  local at = rest + (index - 1) * PARTS
  local what, id, value = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local key = base .. id
  if answers[index] ~= 0 then
    what = "nothing"
  end
  if what == "progress" then
    queue_meta.write_default(meta, settings)
    redis.call("HSET", key, "progress", value)
    if #value > event_log.LARGEST then   -- the job alone has it
      redis.pcall("XADD", events, "MAXLEN", "~", settings.max_events, "*", "event", "progress", "jobId", id, "data", "null",
        "dataBytes", place.whole(#value))
    else
      redis.pcall("XADD", events, "MAXLEN", "~", settings.max_events, "*", "event", "progress", "jobId", id, "data", value)
      said_bytes = said_bytes + #value
    end
  elseif what == "data" then
    redis.call("HSET", key, "data", value)
  elseif what == "log" then
    local length = redis.call("RPUSH", key .. ":logs", value)
    local excess = math.min(length - tonumber(ARGV[at + 3]), STEP)
    if excess > 0 then
      redis.call("LTRIM", key .. ":logs", tostring(excess), "-1")
      length = length - excess
    end
    answers[index] = length
  end
end
event_log.wrote(events, meta, said_bytes, number)
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, unpack(answers) })
