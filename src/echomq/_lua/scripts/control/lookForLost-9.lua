--- Which of these jobs, at most 500, stand in no set and are in no worker's hands; and copies of the lists of this moment.
--- @key completed
--- @key failed
--- @key delayed
--- @key prioritized
--- @key waiting_children
--- @key active
--- @key wait
--- @key paused
--- @key standing
--- @arg look
--- @rest
--- @use check lost_job
--- @returns of each such job its id and the mark of the state that it is in; "" for a key that is no whole job

-- Safe to send again: it only makes its copies anew. The caller reads them in chunks, and what stands in none of them stood
-- nowhere at this one moment, however long the lists are. Such a job does not come back by itself: no transition takes up a
-- job that it does not find in a state. So the caller may put it back later, if its mark is still the same (healJobs).
local EXPIRY = "600"

local sets = { completed, failed, delayed, prioritized, waiting_children }
local lists = { active = active, wait = wait, paused = paused }
for _, set in ipairs(sets) do
  check.zset(set)
end
for _, list in pairs(lists) do
  check.list(list)
end
local ids, locks = {}, {}
for index = rest, #ARGV do
  ids[#ids + 1] = ARGV[index]
  locks[#locks + 1] = base .. ARGV[index] .. ":lock"
end
if #ids == 0 then
  return {}
end
local held, found = redis.call("MGET", unpack(locks)), {}
for _, set in ipairs(sets) do
  found[#found + 1] = redis.call("ZMSCORE", set, unpack(ids))
end
for name, list in pairs(lists) do
  local copy = standing .. ":" .. look .. ":" .. name
  if redis.call("COPY", list, copy, "REPLACE") == 1 then
    redis.call("EXPIRE", copy, EXPIRY)
  end
end

local reply = {}
for index, id in ipairs(ids) do
  local somewhere = held[index]
  for _, scores in ipairs(found) do
    somewhere = somewhere or scores[index]
  end
  if not somewhere then
    local mark = lost_job.mark(base .. id)
    if mark then
      reply[#reply + 1], reply[#reply + 2] = id, mark
    end
  end
end
return reply
