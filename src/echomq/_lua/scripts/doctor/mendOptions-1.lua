--- Whether the options of a job cannot be read; with `act` they become none: the job runs once, with its data.
--- @key meta
--- @arg job_id
--- @arg act
--- @use check
--- @returns 1 they cannot be read | 0 they can, or there is no such job, or a worker runs it

-- Safe to send again: options that can be read are left alone.
local key = base .. job_id
check.hash(meta)
local opts = check.fields(key, "opts")[1]
local readable, found = pcall(cjson.decode, opts or "{}")
if not opts or readable and type(found) == "table" or redis.call("EXISTS", key .. ":lock") == 1 then
  return 0
end
if act ~= "" then
  redis.call("HDEL", key, "opts")   -- first, so that a full memory does not refuse the rest
  redis.call("HSET", key, "opts", "{}")
end
return 1
