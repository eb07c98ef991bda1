--- Pauses the queue for all workers (protocol 3.16, version 6): nothing is fetched until it is resumed; running jobs run on.
--- @key meta
--- @key marker
--- @key events
--- @key wait
--- @key paused
--- @key calls
--- @use clock check paused_list
--- @lane
--- @returns now, how many ids of a list of BullMQ 5 are still to be taken over

check.hash(meta)
check.zset(marker)
check.stream(events)
check.list(wait)
check.list(paused)
local now, now_text = clock.read(clock_given)

redis.call("DEL", marker)   -- first, so that a full memory does not refuse the rest: that is when a queue has to be paused
redis.call("HSET", meta, "paused", "1")
redis.pcall("XADD", events, "*", "event", "paused")
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, paused_list.take_over(paused, wait) })
