--- @rare
--- @use retention place
--- The retention rules of the jobs that were the last to end: they hold on while nothing ends (docs/lifecycle.md). A field of
--- the hash is "completed" or "failed"; its value is "milliseconds:rule", where the milliseconds say when a job ended by it.
-- What has ended since then did so by the hand of another program, whose rule we do not know: that is left alone.

local M = {}

local TARGETS = { "completed", "failed" }

local function moment(said)
  return tonumber(string.match(said or "", "^(%d+):") or "")
end

--- Keeps what a worker says of its last ends, unless a later end is known. The caller has looked at the hash.
function M.remember(rules, completed, failed)
  local said = { completed = completed, failed = failed }
  for _, target in ipairs(TARGETS) do
    local at = moment(said[target])
    if at and at >= (moment(redis.call("HGET", rules, target) or "") or 0) then
      redis.call("HDEL", rules, target)   -- a write that a full memory does not refuse, nor then the next
      redis.call("HSET", rules, target, said[target])
    end
  end
end

--- The rule of a target, and up to when it holds; nil without one that can be read.
local function read(said)
  local up_to, readable, rule = moment(said), pcall(retention.rule, string.match(said or "", ":(.*)$") or "")
  if up_to and readable then
    return rule, up_to
  end
end

--- Whether something stands in the set at `key` that the rule does not keep.
local function exceeds(key, rule, up_to, now)
  local cut = rule.age and math.min(now - rule.age * 1000, up_to) or -1
  local old = redis.pcall("ZCOUNT", key, "0", place.whole(cut))
  local all = redis.pcall("ZCOUNT", key, "-inf", place.whole(up_to))
  return type(all) == "number" and (old > 0 or (rule.count > 0 and all > rule.count))
end

--- Whether there is something that they do not keep. Forgets those of sets that are empty.
function M.overdue(base, rules, now)
  local some = false
  for index, said in ipairs(redis.call("HMGET", rules, unpack(TARGETS))) do
    local key = base .. TARGETS[index]
    local rule, up_to = read(said)
    if rule then
      if redis.call("EXISTS", key) == 0 then
        redis.call("HDEL", rules, TARGETS[index])
      else
        some = some or exceeds(key, rule, up_to, now)
      end
    end
  end
  return some
end

--- Removes some of it, at most `budget` jobs. Returns whether more is left that another call can remove.
function M.enforce(base, rules, now, budget)
  local left = budget
  for index, said in ipairs(redis.call("HMGET", rules, unpack(TARGETS))) do
    local key = base .. TARGETS[index]
    local rule, up_to = read(said)
    if rule and exceeds(key, rule, up_to, now) then
      left = retention.trim(base, key, rule, now, left, up_to)
    end
  end
  return left < budget and M.overdue(base, rules, now)
end

return M
