--- Takes the oldest lines out of a job's log that is longer than its options let it be, at most 1,000 a call.
--- @key meta
--- @arg job_id
--- @arg act
--- @use check
--- @returns how many lines there are too many, 0 if none or if nobody said how many to keep

-- Safe to send again: a log that is as long as it may be is left alone.
local key = base .. job_id
local opts = check.fields(key, "opts")[1]
local readable, found = pcall(cjson.decode, opts or "")
local most = readable and type(found) == "table" and tonumber(found.kl)
local length = check.list(key .. ":logs")
check.hash(meta)
if not most or most < 1 or length <= most then
  return 0
end
local surplus = length - math.floor(most)
if act ~= "" then
  redis.call("LTRIM", key .. ":logs", tostring(math.min(surplus, 1000)), "-1")
end
return surplus
