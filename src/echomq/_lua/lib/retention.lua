--- @use job_keys parents place
--- Which finished jobs are kept (protocol 3.5.3), in bounded steps.

local M = {}

--- "count;age;limit" as numbers: count -1 keeps all and 0 none; age in seconds and limit are nil when empty.
function M.rule(text)
  local count, age, limit = string.match(text, "^(%-?%d+);(%d*);(%d*)$")
  if not count then
    error("BROKEN retention rule " .. text, 0)
  end
  return { count = tonumber(count), age = tonumber(age), limit = tonumber(limit) or 1000 }
end

local function remove(base, id)
  local key = base .. id
  local found = redis.pcall("HGET", key, "parentKey")
  if type(found) == "string" then
    local readable, parent = pcall(parents.look, found, key, base)
    if readable and parent then
      parents.child_removed(parent, key)
    end
  end
  job_keys.delete(key)
end

local function remove_all(base, target, ids)
  if #ids == 0 then
    return
  end
  redis.call("ZREM", target, unpack(ids))
  for _, id in ipairs(ids) do
    remove(base, id)
  end
end

--- Removes what the rule does not keep, at most `budget` jobs; with `up_to`, only of those that had ended by then. Returns
--- what is left of the budget.
function M.trim(base, target, rule, now, budget, up_to)
  if rule.age and budget > 0 then
    local cut = place.whole(math.min(now - rule.age * 1000, up_to or now))
    local ids = redis.call("ZREVRANGEBYSCORE", target, cut, "0", "LIMIT", "0",
      tostring(math.min(rule.limit, budget)))
    remove_all(base, target, ids)
    budget = budget - #ids
  end
  if rule.count > 0 and budget > 0 then
    local there = up_to and redis.call("ZCOUNT", target, "-inf", place.whole(up_to)) or redis.call("ZCARD", target)
    local excess = there - rule.count
    if excess > 0 then
      local ids = redis.call("ZRANGE", target, "0", tostring(math.min(excess, budget) - 1))
      remove_all(base, target, ids)
      budget = budget - #ids
    end
  end
  return budget
end

return M
