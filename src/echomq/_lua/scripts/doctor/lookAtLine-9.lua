--- How the line of a queue stands at this moment.
--- @key wait
--- @key paused
--- @key prioritized
--- @key delayed
--- @key active
--- @key marker
--- @key limiter
--- @key limits
--- @key meta
--- @use clock check place queue_meta
--- @returns now; whether the queue is paused; how many stand in wait, paused, prioritized, active; whether no worker may fetch; whether a rate window is there; whether the base marker is; who would run next; when the first delayed job is due, "" if there is none

local settings = queue_meta.read(meta)
local _, now_text = clock.read(clock_given)
local waiting = check.list(wait)
local set_aside = check.list(paused)
local prior = check.zset(prioritized)
local running = check.list(active)
local first = check.read("sorted set", "ZRANGE", delayed, "0", "0", "WITHSCORES")
local next_id = redis.call("LINDEX", wait, "-1") or redis.call("ZRANGE", prioritized, "0", "0")[1]
local marked = check.read("sorted set", "ZSCORE", marker, "0")
return {
  now_text, settings.paused and 1 or 0, waiting, set_aside, prior, running, queue_meta.closed(settings, active) and 1 or 0,
  redis.call("EXISTS", limiter, limits), marked and 1 or 0, next_id or "",
  first[2] and place.whole(place.due_of(first[2])) or "",
}
