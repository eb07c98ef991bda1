--- How many jobs are in each of the given states (protocol 3.29). Writes nothing, not even to drop an old marker.
--- @key completed
--- @key failed
--- @key delayed
--- @key prioritized
--- @key active
--- @key wait
--- @key paused
--- @key waiting_children
--- @rest
--- @use check
--- @returns a number for each state named, in their order

local sets = {
  completed = completed, failed = failed, delayed = delayed, prioritized = prioritized,
  ["waiting-children"] = waiting_children,
}

--- The length of a list, without the one marker ("0:…") that versions before 5 may have left at its tail.
local function jobs_in(list)
  local length = check.list(list)
  if length > 0 and string.sub(redis.call("LINDEX", list, "-1"), 1, 2) == "0:" then
    return length - 1
  end
  return length
end

local counts = {}
for at = rest, #ARGV do
  local name = ARGV[at]
  if name == "waiting" then
    counts[#counts + 1] = jobs_in(wait) + jobs_in(paused)   -- one state, wherever a paused queue keeps it
  elseif name == "active" then
    counts[#counts + 1] = check.list(active)
  elseif sets[name] then
    counts[#counts + 1] = check.zset(sets[name])
  else
    error("BROKEN state " .. name .. " is none that can be counted", 0)
  end
end
return counts
