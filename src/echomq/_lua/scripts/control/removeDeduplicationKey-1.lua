--- Frees a deduplication id (protocol 3.27). The job that held it goes on, and what was kept to run after it does too.
--- @key calls
--- @arg deduplication_id
--- @arg owner
--- @use clock check
--- @lane
--- @returns now, and 1 if it was held or 0; with an owner ("" for any): by this job

local key = base .. "de:" .. deduplication_id
local now, now_text = clock.read(clock_given)
local is_meant = owner == "" or check.text(key) == owner
redis.call("HDEL", calls, "")   -- there is none: a write that a full memory does not refuse, and so not the record either
local freed = is_meant and redis.call("DEL", key) or 0
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, freed })
