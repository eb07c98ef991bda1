--- How many jobs completed or failed, in all and by the minute (protocol 10), at most 1,000 minutes.
--- @key metrics_completed
--- @key metrics_failed
--- @arg state
--- @arg start number
--- @arg count number
--- @use check
--- @returns how many in all; when the last one was counted, and how many had been counted before its minute (nil: never); minutes, the newest first

local MOST = 1000

local key = state == "completed" and metrics_completed or metrics_failed
local meta = check.fields(key, "count", "prevTS", "prevCount")
check.list(key .. ":data")
local data = redis.call("LRANGE", key .. ":data", tostring(start), tostring(start + math.min(count, MOST) - 1))
return { meta[1] or "0", meta[2], meta[3], data }
