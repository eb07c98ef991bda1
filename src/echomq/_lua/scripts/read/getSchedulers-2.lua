--- Schedules by their ids, at most 100 a call.
--- @key schedulers
--- @key paused_schedulers
--- @rest
--- @use check place schedule
--- @returns for each id: its slot ("" if it does not go on), its hash (flat), "1" if the iteration of that slot waits to be started, its record where it is paused ("" if it is not)

local reply = {}
for index = rest, #ARGV do
  local id = ARGV[index]
  local slot = schedule.slot(schedulers, id)
  local waits = ""
  if slot then
    local starts = check.fields(base .. schedule.iteration_id(id, slot), "name", "ats")
    waits = starts[1] and (tonumber(starts[2] or "0") or 1) == 0 and "1" or ""
  end
  reply[#reply + 1] = {
    slot and place.whole(slot) or "",
    slot and check.read("hash", "HGETALL", base .. "repeat:" .. id) or {},
    waits,
    check.read("hash", "HGET", paused_schedulers, id) or "",
  }
end
return reply
