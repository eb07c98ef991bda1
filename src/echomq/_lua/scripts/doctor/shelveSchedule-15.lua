--- Whether a schedule is whole: its definition, its slot, the job of that slot. With `act` a slot without a definition goes; a
--- definition that nothing would run is put where paused ones are, to be resumed by the caller.
--- @key schedulers
--- @key completed
--- @key failed
--- @key delayed
--- @key prioritized
--- @key waiting_children
--- @key active
--- @key wait
--- @key paused
--- @key id
--- @key pc
--- @key meta
--- @key marker
--- @key events
--- @key paused_schedulers
--- @arg scheduler_id
--- @arg act
--- @use check place queue_meta schedule
--- @returns 0 it is whole, or is none | 1 a slot without a definition | 2 a definition without a slot | 3 the job of its slot is gone or has ended; the slot; the fields of its definition, flat

-- Safe to send again: what was put away is not found again. Whoever dies between this and the resumption leaves a paused schedule.
-- Whether a schedule whose last job has ended has come to its own end, the caller works out.
local key = base .. "repeat:" .. scheduler_id
schedule.check({
  wait = wait, active = active, prioritized = prioritized, delayed = delayed, paused = paused, completed = completed,
  failed = failed, waiting_children = waiting_children, events = events, pc = pc, id = id, marker = marker,
}, queue_meta.read(meta))   -- what its resumption will look at
check.list(paused)
local score = check.read("sorted set", "ZSCORE", schedulers, scheduler_id)
local flat = check.read("hash", "HGETALL", key)
local shelved = check.read("hash", "HGET", paused_schedulers, scheduler_id)
local halfway = shelved and string.find(shelved, '"mending":true', 1, true)   -- a doctor died before the resumption
local fields = {}
for index = 1, #flat, 2 do
  fields[flat[index]] = flat[index + 1]
end
local code, slot = 0, nil
if halfway and not score and #flat == 0 then
  code = 2
elseif score and #flat == 0 then
  code = 1
elseif #flat > 0 and fields.ic then
  if not score then
    code = 2
  else
    slot = schedule.slot(schedulers, scheduler_id)
    local job_id = schedule.iteration_id(scheduler_id, slot)
    if redis.call("EXISTS", base .. job_id) == 0 or redis.call("ZSCORE", completed, job_id)
      or redis.call("ZSCORE", failed, job_id) then
      code = 3
    end
  end
end
if act ~= "" and code == tonumber(act) then
  if code == 1 then
    redis.call("ZREM", schedulers, scheduler_id)
  else
    if not shelved then   -- first, so that a full memory refuses it whole, as it would the resumption
      redis.call("HSET", paused_schedulers, scheduler_id,
        cjson.encode({ fields = fields, slot = place.whole(slot or 0), begun = true, mending = true }))
    end
    redis.call("ZREM", schedulers, scheduler_id)
    redis.call("DEL", key)
  end
end
return { code, score or "", flat }
