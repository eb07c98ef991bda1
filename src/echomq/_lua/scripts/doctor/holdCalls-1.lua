--- Whether the record of calls is large, and most of it of lanes that have long been silent; with `act` some 1,000 of it lose those.
--- @key calls
--- @arg most number
--- @arg act
--- @use clock check
--- @returns how many of a sample are of silent lanes, 0 where it is not as large as that or most are in use; how many there are in all

-- Safe to send again: a record that is gone is not found again. No lane comes back to one that an hour has passed over: its
-- caller has long given up.
local SAMPLE = 1000
local SILENT_MS = 3600000

local size = check.hash(calls)
if size <= most then
  return { 0, size }
end
local now = clock.read(clock_given)
local found = check.read("hash", "HRANDFIELD", calls, tostring(SAMPLE), "WITHVALUES")
local silent = {}
for index = 1, #found, 2 do
  local used = tonumber(string.match(found[index + 1], "^%d+:(%d+):") or "")
  if used and now - used > SILENT_MS then
    silent[#silent + 1] = found[index]
  end
end
if #silent <= #found / 4 then
  return { 0, size }
end
if act ~= "" then
  redis.call("HDEL", calls, unpack(silent))
end
return { #silent, size }
