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
--- @use check listed
--- @returns a number for each state named, in their order

local sets = {
  completed = completed, failed = failed, delayed = delayed, prioritized = prioritized,
  ["waiting-children"] = waiting_children,
}

local counts = {}
for at = rest, #ARGV do
  local name = ARGV[at]
  if name == "waiting" then
    counts[#counts + 1] = listed.count(wait) + listed.count(paused)   -- one state, wherever a paused queue keeps it
  elseif name == "active" then
    counts[#counts + 1] = check.list(active)
  elseif sets[name] then
    counts[#counts + 1] = check.zset(sets[name])
  else
    error("BROKEN state " .. name .. " is none that can be counted", 0)
  end
end
return counts
