--- Resumes the queue (protocol 3.16, version 6). A list that BullMQ 5 paused with is taken over into `wait` first, in steps;
--- until the last one the queue stays paused, so that a caller which dies half-way leaves no job where nobody looks.
--- @key wait
--- @key paused
--- @key prioritized
--- @key delayed
--- @key meta
--- @key marker
--- @key events
--- @key calls
--- @use clock check place paused_list
--- @lane
--- @returns now, how many ids are still to be taken over (above 0: still paused, call again)

check.hash(meta)
check.list(wait)
check.list(paused)
check.zset(prioritized)
check.zset(delayed)
check.zset(marker)
check.stream(events)
local now, now_text = clock.read(clock_given)

local left = paused_list.take_over(paused, wait)
if left == 0 then
  redis.call("HDEL", meta, "paused")
  if redis.call("LLEN", wait) + redis.call("ZCARD", prioritized) > 0 then
    place.mark(marker)
  else
    place.mark_delayed(delayed, marker)
  end
  redis.pcall("XADD", events, "*", "event", "resumed")
end
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, left })
