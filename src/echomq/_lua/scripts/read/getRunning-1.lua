--- Which jobs run, and whose they are: a part of active, from the oldest on.
--- @key active
--- @arg start number
--- @arg count number
--- @use clock check
--- @returns now, how many ids were passed, then of each: id, name, worker and start (false where it does not say)

local _, now_text = clock.read(clock_given)
local ids = check.read("list", "LRANGE", active, tostring(-start - count), tostring(-start - 1))
local page = { now_text, #ids }
for index = #ids, 1, -1 do
  local job = redis.pcall("HMGET", base .. ids[index], "name", "pb", "processedOn")
  if not job.err then
    page[#page + 1] = ids[index]
    for at = 1, 3 do
      page[#page + 1] = job[at]
    end
  end
end
return page
