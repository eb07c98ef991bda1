--- A page of the jobs of one state from where the last one ended, at most some 1 MiB (protocol 3.29).
--- @key completed
--- @key failed
--- @key delayed
--- @key prioritized
--- @key active
--- @key wait
--- @key paused
--- @key waiting_children
--- @arg place_name
--- @arg count number
--- @arg newest
--- @arg passed number
--- @arg left number
--- @arg score
--- @rest
--- @use check ordered_page list_page
--- @returns how many ids were read, how many stand before the next page, and how many from there on; then ids, each with its hash (empty: no job) and, in a set, its score

-- `passed` (-1 for the first page), `left`, `score` and the rest, which are ids of the last page, the last one first, say where
-- that ended.
local MAX_BYTES = 1048576
local lists = { active = active, wait = wait, paused = paused }
local sets = {
  completed = completed, failed = failed, delayed = delayed, prioritized = prioritized,
  ["waiting-children"] = waiting_children,
}

local list, backwards = lists[place_name], newest == "1"
local ids, scores, from, length
if list then
  length = check.list(list)
  from = passed < 0 and 0 or list_page.find(list, length, backwards, passed, left, ARGV, rest)
  ids = list_page.read(list, backwards, from, count)
else
  length = check.zset(sets[place_name])
  from = passed < 0 and 0 or ordered_page.find(sets[place_name], backwards, score, ARGV[rest])
  ids, scores = ordered_page.read(sets[place_name], backwards, from, count)
end

local page, bytes, seen = { 0, 0, 0 }, 0, 0
for index = 1, #ids do
  if bytes >= MAX_BYTES then
    break
  end
  local hash = redis.pcall("HGETALL", base .. ids[index])
  if hash.err then
    hash = {}
  end
  for at = 2, #hash, 2 do
    bytes = bytes + #hash[at]
  end
  page[#page + 1] = ids[index]
  page[#page + 1] = hash
  page[#page + 1] = scores and scores[index] or ""
  seen = index
end
page[1], page[2], page[3] = seen, from + seen, math.max(length - from - seen, 0)
return page
