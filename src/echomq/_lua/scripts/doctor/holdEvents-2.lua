--- Takes the oldest events out of a log that is longer than it may be, at most some 10,000 a call.
--- @key meta
--- @key events
--- @arg surplus number
--- @use check queue_meta
--- @returns how many were taken out, how many are left, how many there may be

-- Safe to send again: a log that is as long as it may be is left alone.
local settings = queue_meta.read(meta)
local length = check.stream(events)
local most = tonumber(settings.max_events)
if length <= most + surplus then
  return { 0, length, most }
end
local gone = redis.call("XTRIM", events, "MAXLEN", "~", settings.max_events, "LIMIT", "10000")
return { gone, length - gone, most }
