--- @use check
--- The settings of a queue (protocol 1.4), read once a call.

local M = {}

local DEFAULT_MAX_EVENTS = "10000"

--- A setting as a whole number, or nil where it is absent or no number that one can count with.
local function whole(text)
  local number = text and tonumber(text)
  if number and number > -check.EXACT and number < check.EXACT then
    return math.floor(number)
  end
  return nil
end

--- paused, concurrency, max, duration, limited_until (numbers or nil), max_events (text).
function M.read(meta)
  local found = check.fields(meta, "paused", "concurrency", "max", "duration", "opts.maxLenEvents", "limitedUntil")
  return {
    paused = found[1] and true or false,
    concurrency = whole(found[2]),
    max = whole(found[3]),
    duration = whole(found[4]),
    limited_until = found[6] and whole(found[6]),   -- ours: the end of a limit set by hand
    max_events = found[5] and #found[5] < 16 and check.is_count(found[5]) and not string.find(found[5], "-", 1, true)
      and found[5] or DEFAULT_MAX_EVENTS,
    events_unset = not found[5],
  }
end

--- Writes the default length of the event log where none is set, as every writer of events does.
function M.write_default(meta, settings)
  if settings.events_unset then
    redis.call("HSET", meta, "opts.maxLenEvents", DEFAULT_MAX_EVENTS)
    settings.events_unset = false
  end
end

--- "Paused or maxed" (protocol 0): no worker may take a job now.
function M.closed(settings, active)
  return settings.paused or (settings.concurrency and redis.call("LLEN", active) >= settings.concurrency) or false
end

return M
