--- Lines of a job's log from a position on (protocol 3.21), at most 1,000 and some 1 MiB.
--- @key meta
--- @arg job_id
--- @arg start number
--- @arg count number
--- @arg newest
--- @use check
--- @returns how many lines there are (-1: no such job), then lines; with `newest` the positions count from the last line back

local MOST, MAX_BYTES, CHUNK = 1000, 1048576, 10

local _ = meta   -- by it a cluster knows where the job is
local logs = base .. job_id .. ":logs"
if check.hash(base .. job_id) == 0 then
  return { -1 }
end
local length = check.list(logs)
local reply, bytes = { length }, 0
local stop = math.min(start + math.min(count, MOST), length)
local from = start
while from < stop and bytes < MAX_BYTES do
  local till = math.min(from + CHUNK, stop)
  local lines
  if newest == "1" then
    lines = redis.call("LRANGE", logs, tostring(-till), tostring(-from - 1))
  else
    lines = redis.call("LRANGE", logs, tostring(from), tostring(till - 1))
  end
  for index = 1, #lines do
    local line = newest == "1" and lines[#lines - index + 1] or lines[index]
    reply[#reply + 1] = line
    bytes = bytes + #line
  end
  from = till
end
return reply
