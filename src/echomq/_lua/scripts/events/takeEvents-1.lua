--- Gives a member of a group entries of the event log: its own ones again, such that others let lie, then new ones.
--- @key events
--- @arg group
--- @arg member
--- @arg start
--- @arg known
--- @arg heard
--- @arg own
--- @arg count
--- @arg idle_ms
--- @arg cursor
--- @use check
--- @returns after and until of a gap (both "": none), the next cursor of what others let lie, then id and fields (nil: gone) of each entry

-- `start` is where the group begins if it is not there yet: "$", or an id. `known` is the last id that this member was
-- given, or "": then the group was there, and is gone, with its log or without. `own` is "" for new ones, or an id: those
-- behind it that the member was given and has not acknowledged. `idle_ms` is "" or how long others may let theirs lie.
--
-- Safe to send again without a lane: what a lost reply brought stands in the group as the member's own, and it asks for that.
-- A gap stands nowhere: so a call that finds one leaves the group where it is, and only tells. The next call says what the
-- member has `heard`, the place behind which the gap was, or "", and goes on from there.
check.stream(events)

local function named(flat)
  local fields = {}
  for index = 1, #flat, 2 do
    fields[flat[index]] = flat[index + 1]
  end
  return fields
end

local function stream_info()
  local info = redis.pcall("XINFO", "STREAM", events)
  return info.err and {} or named(info)
end

local function before(one, other)
  local ms, seq = string.match(one, "^(%d+)-(%d+)$")
  local other_ms, other_seq = string.match(other, "^(%d+)-(%d+)$")
  if tonumber(ms) ~= tonumber(other_ms) then
    return tonumber(ms) < tonumber(other_ms)
  end
  return tonumber(seq) < tonumber(other_seq)
end

local function find_group()
  local groups = redis.pcall("XINFO", "GROUPS", events)
  for _, found in ipairs(groups.err and {} or groups) do
    local fields = named(found)
    if fields.name == group then
      return fields
    end
  end
  return nil
end

local found = find_group()
if not found then
  local info = stream_info()
  local begin = start
  if known ~= "" then
    if heard ~= known then
      return { known, "", cursor }
    end
    begin = info["last-generated-id"] and not before(info["last-generated-id"], known) and known or "0-0"
  end
  redis.call("XGROUP", "CREATE", events, group, begin, "MKSTREAM")
  -- From Redis 7.0 on: how many entries came before, so that it can be told how many were cut off.
  local added = info["entries-added"] or (not info.length and 0)
  if added and (begin == "$" or begin == "0-0") then
    local read = begin == "$" and added or added - (info.length or 0)
    redis.pcall("XGROUP", "SETID", events, group, begin, "ENTRIESREAD", tostring(read))
  end
  found = find_group()
end

local reply = { "", "", "0-0" }
local wanted = tonumber(count)

local function add(entries)
  for _, entry in ipairs(entries) do
    if entry then
      reply[#reply + 1] = entry[1]
      reply[#reply + 1] = entry[2] or false
      wanted = wanted - 1
    end
  end
end

local function read(from)
  local answer = redis.call("XREADGROUP", "GROUP", group, member, "COUNT", tostring(wanted), "STREAMS", events, from)
  if answer then
    add(answer[1][2])
  end
end

if own ~= "" then
  read(own)
  return reply
end

if idle_ms ~= "" then
  local claimed = redis.call("XAUTOCLAIM", events, group, member, idle_ms, cursor, "COUNT", tostring(wanted))
  reply[3] = claimed[1]
  add(claimed[2])
  for _, id in ipairs(claimed[3] or {}) do   -- cut off before they were handled
    reply[#reply + 1] = id
    reply[#reply + 1] = false
  end
end

if wanted > 0 then
  local delivered = found["last-delivered-id"]
  local first = redis.call("XRANGE", events, "-", "+", "COUNT", "1")[1]
  local info = stream_info()
  local gone = info["entries-added"] and info["entries-added"] - info.length
  local counted = found["entries-read"]
  local cut
  if gone and counted then
    cut = gone > counted
  else
    cut = first and delivered ~= "0-0" and before(delivered, first[1])
  end
  if cut and heard ~= delivered then
    reply[1], reply[2] = delivered, first and first[1] or ""
    return reply
  end
  if cut and gone then
    redis.pcall("XGROUP", "SETID", events, group, delivered, "ENTRIESREAD", tostring(gone))
  end
  read(">")
end
return reply
