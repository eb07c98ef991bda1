--- Says that a member of a group still works on entries, so that nobody else takes them over.
--- @key events
--- @arg group
--- @arg member
--- @rest
--- @use check
--- @returns the ids that are another's by now

-- Safe to send again: it says the same of the same entries.
check.stream(events)

local kept, lost = {}, {}
for index = rest, #ARGV do
  local id = ARGV[index]
  local pending = redis.pcall("XPENDING", events, group, id, id, "1")
  local held = not pending.err and pending[1]
  if held then
    if held[2] == member then
      kept[#kept + 1] = id
    else
      lost[#lost + 1] = id
    end
  elseif #redis.call("XRANGE", events, id, id) > 0 and not pending.err then
    lost[#lost + 1] = id   -- somebody has acknowledged it; one that was cut off, nobody can
  end
end
if #kept > 0 then
  local claim = { "XCLAIM", events, group, member, "0" }
  for _, id in ipairs(kept) do
    claim[#claim + 1] = id
  end
  claim[#claim + 1] = "JUSTID"
  redis.call(unpack(claim))
end
return lost
