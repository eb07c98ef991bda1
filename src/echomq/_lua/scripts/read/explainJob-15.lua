--- What decides where a job is, and what comes next for it, as it is at one moment. Looks at a bounded number of keys and members.
--- @key completed
--- @key failed
--- @key delayed
--- @key prioritized
--- @key active
--- @key wait
--- @key paused
--- @key waiting_children
--- @key meta
--- @key limiter
--- @key stalled
--- @key suspects
--- @key check_at
--- @key schedulers
--- @key paused_schedulers
--- @arg job_id
--- @use clock check place queue_meta state
--- @returns facts, each a name and a value

local SOME = 3        -- children that are named, running jobs whose locks are looked at
local LONGEST = 500   -- of texts that are shown
local FIELDS = {
  "name", "timestamp", "delay", "priority", "processedOn", "finishedOn", "pb", "ats", "atm", "attemptsMade", "failedReason",
  "failureKind", "defa", "cancelRequested", "skipped", "resultError", "deid", "rjk", "due", "opts",
}
local WHOLE = { opts = 65536 }

local key = base .. job_id
local now, now_text = clock.read(clock_given)
local facts = { "now", now_text }
local function tell(name, value)
  if value then
    facts[#facts + 1] = name
    facts[#facts + 1] = type(value) == "number" and place.whole(value) or value
  end
end

--- What a command answers; nil where the job's own key is of another type.
local function ask(...)
  local found = redis.pcall(...)
  if type(found) == "table" and found.err then
    return nil
  end
  return found
end

local q = {
  completed = completed, failed = failed, delayed = delayed, prioritized = prioritized, active = active, wait = wait,
  paused = paused, waiting_children = waiting_children,
}
local settings = queue_meta.read(meta)
local at, before = state.near(q, job_id)
tell("state", at)

local fields = {}
local hash = ask("HMGET", key, unpack(FIELDS))
for index, name in ipairs(FIELDS) do
  local value = hash and hash[index]
  if value and #value <= (WHOLE[name] or math.huge) then
    fields[name] = WHOLE[name] and value or string.sub(value, 1, LONGEST)
    tell("job." .. name, fields[name])
  end
end
tell("exists", redis.call("EXISTS", key))

local waits = check.list(wait) + check.list(paused)
local running = check.list(active)
tell("running", running)
for _, id in ipairs(redis.call("LRANGE", active, "0", tostring(SOME - 1))) do
  if ask("EXISTS", base .. id .. ":lock") == 1 then
    tell("lives", string.sub(ask("HGET", base .. id, "pb") or "", 1, LONGEST))
  end
end
tell("paused", settings.paused and 1)
tell("concurrency", settings.concurrency)
local used = tonumber(check.text(limiter) or "")
local by_hand = settings.limited_until and now < settings.limited_until
local most = settings.max or (by_hand and tonumber(place.MANUAL))
local left = redis.call("PTTL", limiter)
if used and most and used >= most and left > 0 then
  tell("limited", left)
  tell("limited by hand", used >= tonumber(place.MANUAL) and 1)
  tell("max", settings.max)
elseif used and not settings.max and left > 0 then   -- the window of workers that have a limit of their own
  tell("window ms", left)
  tell("window used", used)
end

if at == "waiting" then
  local in_wait = before and redis.call("LINDEX", wait, tostring(-before - 1)) == job_id
  tell("before", before and before + (in_wait and redis.call("LLEN", paused) or 0))
elseif at == "prioritized" then
  tell("before", waits + redis.call("ZRANK", prioritized, job_id))
elseif at == "delayed" then
  tell("due", place.due_of(redis.call("ZSCORE", delayed, job_id)))
elseif at == "active" then
  tell("lock", ask("EXISTS", key .. ":lock"))
  tell("lock ms", ask("PTTL", key .. ":lock"))
  tell("marked", check.read("set", "SISMEMBER", stalled, job_id))
  tell("suspect", check.read("set", "SISMEMBER", suspects, job_id))
  tell("sweep ms", redis.call("PTTL", check_at))
end

local pending = ask("SCARD", key .. ":dependencies") or 0
if pending > 0 or at == "waiting-children" then
  tell("children", pending)
  for _, child in ipairs(ask("SRANDMEMBER", key .. ":dependencies", tostring(SOME)) or {}) do
    tell("child", child)
  end
  tell("children completed", ask("HLEN", key .. ":processed"))
end
local lost = (ask("ZCARD", key .. ":unsuccessful") or 0) + (ask("HLEN", key .. ":failed") or 0)
if lost > 0 then
  tell("children failed", lost)
  for _, child in ipairs(ask("ZRANGE", key .. ":unsuccessful", "0", tostring(SOME - 1)) or {}) do
    tell("failed child", child)
  end
end

if fields.deid then
  local unique = base .. "de:" .. fields.deid
  if ask("GET", unique) == job_id then
    tell("unique ms", redis.call("PTTL", unique))
  end
end

local schedule, slot = string.match(job_id, "^repeat:(.*):(%d+)$")
if fields.rjk or schedule then
  schedule = fields.rjk or schedule
  tell("schedule", schedule)
  tell("schedule slot", slot)
  tell("schedule next", check.read("sorted set", "ZSCORE", schedulers, schedule))
  tell("schedule paused", check.read("hash", "HEXISTS", paused_schedulers, schedule))
end
return facts
