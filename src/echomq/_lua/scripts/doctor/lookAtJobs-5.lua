--- What stands under each of these ids, at most 100: a job? in which sets? what of it is held?
--- @key completed
--- @key failed
--- @key delayed
--- @key prioritized
--- @key waiting_children
--- @rest
--- @use check
--- @returns of each id: hash | part (no whole job) | none | other; the sets that it stands in, as their numbers above; "" or what its options are: broken; its deduplication id

local LARGEST = 65536   -- of options beyond this nobody asks whether they are JSON

local sets = { completed, failed, delayed, prioritized, waiting_children }
for _, set in ipairs(sets) do
  check.zset(set)
end
local ids = {}
for index = rest, #ARGV do
  ids[#ids + 1] = ARGV[index]
end
if #ids == 0 then
  return {}
end
local scores = {}
for number, set in ipairs(sets) do
  scores[number] = redis.call("ZMSCORE", set, unpack(ids))
end

local reply = {}
for index, id in ipairs(ids) do
  local key = base .. id
  local found = redis.pcall("HMGET", key, "name", "timestamp", "opts", "deid")
  local kind, options = "other", ""
  if not found.err then
    if found[1] and found[2] and found[3] then
      kind = "hash"
      if #found[3] <= LARGEST then
        local readable, opts = pcall(cjson.decode, found[3])
        options = readable and type(opts) == "table" and "" or "broken"
      end
    else
      kind = redis.call("EXISTS", key) == 1 and "part" or "none"
    end
  end
  local places = ""
  for number = 1, #sets do
    places = places .. (scores[number][index] and number or "")
  end
  local at = #reply
  reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = kind, places, options, not found.err and found[4] or ""
end
return reply
