--- A delayed job becomes due at another time (protocol 3.12).
--- @key delayed
--- @key meta
--- @key marker
--- @key events
--- @key calls
--- @arg job_id
--- @arg delay number
--- @arg due number
--- @use clock check place put_off queue_meta queue_keys state
--- @lane
--- @returns now, 0 done | -1 no such job | -3 not delayed, and then its state

-- `delay` counts from now; or it is empty, and `due` is the moment itself. What has passed is now.
local settings = queue_meta.read(meta)
check.zset(delayed)
check.zset(marker)
check.stream(events)
local job = check.fields(base .. job_id, "name", "priority")
local now, now_text = clock.read(clock_given)

local code, found = 0, ""
redis.call("XTRIM", events, "MAXLEN", "~", settings.max_events)   -- first, so that a full memory does not refuse the rest
if not (job[1] or job[2]) then
  code = -1
elseif not redis.call("ZSCORE", delayed, job_id) then
  code, found = -3, state.near(queue_keys.of(base), job_id)
else
  local at = math.max(due or now + delay, now)
  put_off.to({ delayed = delayed, events = events }, base .. job_id, job_id, at, place.whole(at - now))
  place.mark_delayed(delayed, marker)
end
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, code, found })
