--- @rare
--- @use check other_queue waiting_outcomes
--- How a job ended becomes a job `outcome` of another queue (docs/results-queue.md): at once where that is within reach of this
--- script, else by way of the outbox, a stream in our own slot that a worker empties.

local M = {}

local HIGHEST = "18446744073709551615-18446744073709551615"
local looked = {}   -- one look for all outcomes of the call

--- Looks at where it goes; raises BROKEN. `way` has the queue's `base` and `opts` of the job; or `outbox`, `to` and `at`.
function M.look(way)
  local box = way.outbox
  if box then
    if not looked[box] then
      check.stream(box)
      if waiting_outcomes.last_id(box) == HIGHEST then
        error("BROKEN " .. box .. " must be a stream that takes more entries", 0)
      end
      looked[box] = true
    end
    return way
  end
  way.q = other_queue.look(way.base)
  return way
end

local DAY = 86400000

--- A moment of the server as ISO 8601 has it. The date is reckoned in years that begin in March, so that leap days come last.
local function iso(ms)
  local days = math.floor(ms / DAY)
  local shifted = days + 719468   -- since the first of March of the year 0
  local era = math.floor(shifted / 146097)   -- 400 years
  local day = shifted - era * 146097
  local year = math.floor((day - math.floor(day / 1460) + math.floor(day / 36524) - math.floor(day / 146096)) / 365)
  day = day - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * day + 2) / 153)   -- March is 0
  day = day - math.floor((153 * month + 2) / 5) + 1
  month = month < 10 and month + 3 or month - 9
  year = year + era * 400 + (month <= 2 and 1 or 0)
  local rest = ms - days * DAY
  return string.format("%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", year, month, day, math.floor(rest / 3600000),
    math.floor(rest / 60000) % 60, math.floor(rest / 1000) % 60, rest % 1000)
end

--- Writes it. `result` is JSON; `id` names this end of the job, whoever hears of it and however often.
function M.write(way, result, id, now, now_text)
  local data = way.head .. result .. ',"finished_at":"' .. iso(now) .. '"}'
  if way.outbox then
    redis.call("XADD", way.outbox, "*", "id", "outcome-" .. id, "to", way.to, "at", way.at, "data", data)
  else
    other_queue.add(way.q, "outcome", data, way.opts, now, now_text)
  end
end

return M
