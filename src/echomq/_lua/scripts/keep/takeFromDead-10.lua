--- The jobs of a process that somebody saw die go back to the front, counted as stalled (protocol 3.22), without waiting for their
--- locks to expire. Only locks that the process itself has set count: what another worker has taken meanwhile stays its own.
--- @key stalled
--- @key wait
--- @key active
--- @key prioritized
--- @key delayed
--- @key meta
--- @key paused
--- @key marker
--- @key events
--- @key calls
--- @arg owner
--- @arg max_stalled number
--- @arg crash
--- @arg from number
--- @use clock check queue_meta place paused_list stalled_job
--- @lane
--- @returns now, where the next step goes on (-1: there is none), then the ids that went back

-- `owner` is what the tokens of all its locks begin with. It is random and used for one process, so neither a process id that
-- comes again nor another machine can be mistaken for it.
local CHUNK = 1000
local RECOVER = 100

if owner == "" then
  error("REFUSED to take jobs from nobody", 0)
end
local pauses = crash ~= "" and cmsgpack.unpack(crash) or nil
local settings = queue_meta.read(meta)
check.list(wait)
check.list(active)
check.zset(prioritized)
check.zset(delayed)
check.zset(marker)
check.stream(events)
check.set(stalled)
check.counter(base .. "pc")
if settings.paused then
  check.list(paused)
end
local now, now_text = clock.read(clock_given)
redis.call("XTRIM", events, "MAXLEN", "~", settings.max_events)   -- first, so that a full memory does not refuse the rest
if settings.paused then
  paused_list.take_over(paused, wait)
end

-- In steps from the oldest end, as the sweep goes; in a step the newest first, so that the oldest comes to stand at the front.
local q = {
  base = base, wait = wait, active = active, prioritized = prioritized, delayed = delayed, events = events,
}
local counting = { now = now, max_stalled = max_stalled, pauses = pauses }
local recovered, met = {}, 0
local last = -1 - from
local ids = redis.call("LRANGE", active, tostring(last - CHUNK + 1), tostring(last))
if #ids > 0 then
  local lock_keys = {}
  for index, job_id in ipairs(ids) do
    lock_keys[index] = base .. job_id .. ":lock"
  end
  local locks = redis.call("MGET", unpack(lock_keys))
  for index, job_id in ipairs(ids) do
    if met < RECOVER and locks[index] and string.sub(locks[index], 1, #owner) == owner then
      met = met + 1
      redis.call("DEL", lock_keys[index])
      redis.call("SREM", stalled, job_id)
      if stalled_job.put_back(q, counting, job_id) then
        recovered[#recovered + 1] = job_id
      end
    end
  end
end
local next_from = -1
if met == RECOVER then
  next_from = from
elseif #ids == CHUNK then
  next_from = from + CHUNK - met
end
if pauses and #recovered > 0 then
  place.mark_delayed(delayed, marker)
end
if #recovered > 0 and not queue_meta.closed(settings, active) then
  place.mark(marker)
end

local reply = { now_text, place.whole(next_from) }
for _, job_id in ipairs(recovered) do
  reply[#reply + 1] = job_id
end
return calls_kept.keep(calls, lane, number, now, now_text, reply)
