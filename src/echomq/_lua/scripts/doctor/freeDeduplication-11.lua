--- Whether a deduplication id is held for ever by a job that has ended or is gone, and whether what was kept to run after one
--- waits in vain. With `act` the id is freed, and what was kept is added: somebody was promised its run.
--- @key wait
--- @key active
--- @key prioritized
--- @key delayed
--- @key completed
--- @key failed
--- @key id
--- @key pc
--- @key meta
--- @key marker
--- @key events
--- @arg deduplication_id
--- @arg act
--- @rest
--- @use clock check queue_meta place dedup
--- @returns whether the id is dead (1 or 0); whether what was kept waits in vain; who holds the id; with act the id of the job that was added, else ""

-- Safe to send again: an id that is free and a job that was added are not found again.
-- rest: jobs that are known to have this id, for whose end the kept one may wait.
local q = {
  base = base, wait = wait, active = active, prioritized = prioritized, delayed = delayed, completed = completed,
  failed = failed, id = id, pc = pc, meta = meta, marker = marker, events = events,
}
local settings = queue_meta.read(meta)
check.list(wait)
check.list(active)
for _, set in ipairs({ prioritized, delayed, completed, failed, marker }) do
  check.zset(set)
end
check.stream(events)

local function lives(job_id)
  return redis.call("EXISTS", base .. job_id) == 1 and not redis.call("ZSCORE", completed, job_id)
    and not redis.call("ZSCORE", failed, job_id)
end

local found = dedup.look(q, deduplication_id)
local held = found.owner and lives(found.owner)
local dead = found.owner and not held and redis.call("PTTL", found.key) == -1 or false
local kept = check.hash(found.next_key) > 0
local in_vain = false
if kept and not held then
  local keeper = redis.call("HGET", found.next_key, "owner")
  in_vain = not (keeper and lives(keeper))
  for index = rest, #ARGV do
    in_vain = in_vain and not lives(ARGV[index])
  end
end
local added = ""
if act ~= "" and (dead or in_vain) then
  local now, now_text = clock.read(clock_given)
  if in_vain then
    dedup.look_next(q, found)
  end
  redis.call("XTRIM", events, "MAXLEN", "~", settings.max_events)   -- first, so that a full memory does not refuse the rest
  if dead then
    redis.call("DEL", found.key)
    found.owner = false
  end
  local put = in_vain and dedup.add_next(q, found, "", deduplication_id, now, now_text)
  if put == "delayed" then
    place.mark_delayed(delayed, marker)
  elseif put and not queue_meta.closed(settings, active) then
    place.mark(marker)
  end
  added = put and found.id or ""
end
return { dead and 1 or 0, in_vain and 1 or 0, found.owner or "", added }
