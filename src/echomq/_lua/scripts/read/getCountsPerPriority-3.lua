--- How many jobs wait with each of these priorities (protocol 3.29), or, if none is given, with each that there is, at most 1,000.
--- @key wait
--- @key paused
--- @key prioritized
--- @rest
--- @use check listed place
--- @returns priorities, each with its number; 0 is that of the jobs without one

local MOST = 1000

local function count(priority)
  if priority == 0 then
    return listed.count(wait) + listed.count(paused)
  end
  -- A class begins half a share lower than its first score by the protocol (place.class_start).
  return redis.call("ZCOUNT", prioritized, place.whole(place.class_start(priority)),
    "(" .. place.whole(place.class_start(priority + 1)))
end

check.zset(prioritized)
local counts = {}
local function tell(priority)
  counts[#counts + 1] = priority
  counts[#counts + 1] = count(priority)
end
for at = rest, #ARGV do
  tell(tonumber(ARGV[at]))
end
if #ARGV < rest then
  tell(0)
  local after = "-inf"
  for _ = 2, MOST do
    local found = redis.call("ZRANGEBYSCORE", prioritized, after, "+inf", "WITHSCORES", "LIMIT", "0", "1")
    if not found[1] then
      break
    end
    local priority = place.class_of(found[2])
    tell(priority)
    after = place.whole(place.class_start(priority + 1))
  end
end
return counts
