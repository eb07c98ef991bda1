--- What a queue's gauges show, at one moment. Writes nothing.
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
--- @use clock check place queue_meta listed
--- @returns how many are in wait, in paused, in each other state (active, delayed, prioritized, waiting-children, completed, failed), 1 if the queue is paused, for how many milliseconds a rate limit holds its workers, how old the job is that runs next (milliseconds, -1 if none waits), how many have completed and failed since that is counted (-1 where it is not)

local now = clock.read(clock_given)

--- Since when a job waits, as far as its hash tells: it was due, or in a worker's hands, not before that.
local function waits_since(id)
  local found = redis.pcall("HMGET", base .. id, "timestamp", "processedOn", "opts")
  if found.err then
    return now
  end
  local made, started = tonumber(found[1]) or now, tonumber(found[2]) or 0
  local readable, opts = pcall(cjson.decode, found[3] or "{}")
  local delay = readable and type(opts) == "table" and tonumber(opts.delay) or 0
  return math.max(made + math.max(delay, 0), started)
end

local function next_of(list)
  local id = redis.call("LINDEX", list, "-1")
  if id and string.sub(id, 1, 2) == "0:" then
    id = redis.call("LINDEX", list, "-2")
  end
  return id
end

local in_wait, in_paused, in_prioritized = listed.count(wait), listed.count(paused), check.zset(prioritized)
local oldest
for _, id in ipairs({ next_of(wait), next_of(paused), redis.call("ZRANGE", prioritized, "0", "0")[1] }) do
  if id then
    oldest = math.min(oldest or now, waits_since(id))
  end
end

local settings = queue_meta.read(meta)
local used = check.text(limiter)
local max = settings.max or (settings.limited_until and now < settings.limited_until and tonumber(place.MANUAL))
local limited = used and max and (tonumber(used) or 0) >= max

local function counted(target)
  local found = tonumber(check.fields(base .. "metrics:" .. target, "count")[1] or "")
  return found and found >= 0 and found < check.EXACT and place.whole(found) or "-1"
end

return {
  in_wait, in_paused, check.list(active), check.zset(delayed), in_prioritized, check.zset(waiting_children),
  check.zset(completed), check.zset(failed), settings.paused and 1 or 0,
  limited and math.max(redis.call("PTTL", limiter), 0) or 0, oldest and math.max(now - oldest, 0) or -1,
  counted("completed"), counted("failed"),
}
