--- A page of the jobs of one state (protocol 3.29), at most `count` and some 1 MiB.
--- @key completed
--- @key failed
--- @key delayed
--- @key prioritized
--- @key active
--- @key wait
--- @key paused
--- @key waiting_children
--- @arg place_name
--- @arg start number
--- @arg count number
--- @arg newest
--- @use check
--- @returns how many ids were passed, then id and hash of each that has one

-- Lists have their newest at the head; sets are in the order of their scores.
local MAX_BYTES = 1048576
local lists = { active = active, wait = wait, paused = paused }
local sets = {
  completed = completed, failed = failed, delayed = delayed, prioritized = prioritized,
  ["waiting-children"] = waiting_children,
}

local ids
local list = lists[place_name]
local from_tail = list and newest == ""
if from_tail then
  ids = check.read("list", "LRANGE", list, tostring(-start - count), tostring(-start - 1))
elseif list then
  ids = check.read("list", "LRANGE", list, tostring(start), tostring(start + count - 1))
else
  ids = check.read("sorted set", newest == "1" and "ZREVRANGE" or "ZRANGE", sets[place_name], tostring(start),
    tostring(start + count - 1))
end
local page, bytes = { 0 }, 0
for index = 1, #ids do
  if bytes >= MAX_BYTES then
    break
  end
  local id = from_tail and ids[#ids - index + 1] or ids[index]
  local hash = redis.pcall("HGETALL", base .. id)
  if not hash.err and #hash > 0 then
    for at = 2, #hash, 2 do
      bytes = bytes + #hash[at]
    end
    page[#page + 1] = id
    page[#page + 1] = hash
  end
  page[1] = index
end
return page
