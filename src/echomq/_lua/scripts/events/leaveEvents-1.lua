--- A member leaves a group: what it has not handled, others may take at once. Members that are long gone are forgotten.
--- @key events
--- @arg group
--- @arg member
--- @arg leaves
--- @arg forget_ms number
--- @rest
--- @returns how many members were forgotten

-- With `leaves` "" it only forgets the others. Safe to send again: who has left, and what was given back, is so already.
local LONG_AGO = "1000000000"
local MOST = 100

local consumers = redis.pcall("XINFO", "CONSUMERS", events, group)
if consumers.err then   -- no log, or no such group: nothing to leave
  return 0
end
local given_back = {}
for index = rest, #ARGV do
  local id = ARGV[index]
  local pending = redis.call("XPENDING", events, group, id, id, "1", member)
  if #pending > 0 then
    given_back[#given_back + 1] = id
  end
end
if #given_back > 0 then
  local claim = { "XCLAIM", events, group, member, "0" }
  for _, id in ipairs(given_back) do
    claim[#claim + 1] = id
  end
  for _, option in ipairs({ "IDLE", LONG_AGO, "JUSTID" }) do
    claim[#claim + 1] = option
  end
  redis.call(unpack(claim))
end

local forgotten = 0
for _, flat in ipairs(redis.call("XINFO", "CONSUMERS", events, group)) do
  local fields = {}
  for index = 1, #flat, 2 do
    fields[flat[index]] = flat[index + 1]
  end
  local gone = fields.name == member and leaves ~= "" or fields.name ~= member and fields.idle > forget_ms
  if fields.pending == 0 and gone and forgotten < MOST then
    redis.call("XGROUP", "DELCONSUMER", events, group, fields.name)
    forgotten = forgotten + 1
  end
end
return forgotten
