--- Where a job that can run, or will run later, is put (protocol 3.2, 4, 5).

local M = {}

local CLASS = 4294967296   -- one priority's share of the score (5.2)
local TICK = 4096          -- one millisecond's share of the score of a delayed job (5.1)
M.CLASS, M.TICK = CLASS, TICK
M.MANUAL = "9007199254740991"   -- what `limiter` holds under a limit that somebody set by hand (3.23)

local function whole(number)
  return number == 1 and "1" or string.format("%.0f", number)   -- 1 is what most attempts are
end
M.whole = whole

local HIGHEST = 2097151   -- scores stay exact up to here
local LATEST = 9007199254740991   -- and any whole number up to here

--- The priority that a job's hash or options give, as a number that makes a score: 0 where it gives none.
function M.priority(given)
  local number = tonumber(given or "")
  if number and number > 0 then   -- not true of NaN
    return math.min(number, HIGHEST)
  end
  return 0
end

--- A counter in a job's hash as a number that one can count on from: 0 where it is none. Whatever stands there, counting
--- comes to an end: nan + 1 is nan, and beyond 2^53 adding 1 changes nothing.
function M.count(given)
  local number = given and tonumber(given)
  if number and number > 0 and number < LATEST then   -- not true of NaN
    return math.floor(number)
  end
  return 0
end

--- A fresh score of a priority: after all that are there now.
function M.score(priority, pc)
  return whole(priority * CLASS + redis.call("INCR", pc) % CLASS)
end

-- The counter begins anew where all classes have run empty, so there may be no room between the first of a class and the lower
-- end of its share. What is put before it then goes below that end, into the upper half of the share of the class before, which
-- no counter reaches: after all that stand there, and before all of its own. So a class begins half a share lower.
local HALF = CLASS / 2

--- Where the jobs of a class begin, those that were put before all others too; as a number.
function M.class_start(priority)
  return priority * CLASS - HALF
end

--- The class that a score belongs to.
function M.class_of(score)
  return math.floor((tonumber(score) + HALF) / CLASS)
end

local function lowest(priority, prioritized)
  local first = redis.call("ZRANGEBYSCORE", prioritized, whole(M.class_start(priority)),
    "(" .. whole(M.class_start(priority + 1)), "WITHSCORES", "LIMIT", "0", "1")
  return tonumber(first[2] or "")
end

--- The score before all others of its class. Where it is the first of its class, it leaves room for `more` that will be put
--- before it.
function M.front_score(priority, prioritized, pc, more)
  local first = lowest(priority, prioritized)
  if not first then
    return whole(priority * CLASS + redis.call("INCRBY", pc, whole(1 + (more or 0))) % CLASS)
  end
  return whole(math.max(first - 1, M.class_start(priority)))
end

--- The score at the front of a class by a caller's wish (protocol 5.2): its lower end, or before what stands there already.
function M.first_score(priority, prioritized)
  local first = lowest(priority, prioritized)
  return whole(math.max(math.min(priority * CLASS, (first or math.huge) - 1), M.class_start(priority)))
end

--- The score of a due time: ties keep their order, up to 4096 in a millisecond.
function M.due_score(delayed, due)
  local low, high = due * TICK, (due + 1) * TICK - 1
  local last = redis.call("ZREVRANGEBYSCORE", delayed, whole(high), whole(low), "WITHSCORES", "LIMIT", "0", "1")
  if not last[2] then
    return whole(low)
  end
  return whole(math.min(tonumber(last[2]) + 1, high))
end

--- The due time of a score: a whole number, whatever stands there.
function M.due_of(score)
  return math.max(0, math.min(math.floor(tonumber(score) / TICK), LATEST))
end

--- The base marker: a job may be runnable now. The caller has looked whether the queue is paused or maxed.
function M.mark(marker)
  redis.call("ZADD", marker, "0", "0")
end

--- The delay marker: when the earliest delayed job becomes due. Returns that time, or nil.
function M.mark_delayed(delayed, marker)
  local first = redis.call("ZRANGE", delayed, "0", "0", "WITHSCORES")
  if not first[2] then
    return nil
  end
  local due = tonumber(first[2]) / TICK
  redis.call("ZADD", marker, string.format("%.17g", due), "1")
  return due
end

return M
