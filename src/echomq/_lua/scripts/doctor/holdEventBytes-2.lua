--- Whether the event log takes far more bytes than it may; with `act` its oldest entries go, at most some 10,000 a call.
--- @key meta
--- @key events
--- @arg times number
--- @arg act
--- @use check event_log
--- @returns how many entries are too many, with act how many have gone, 0 where it is not as large as that; its bytes, and how many it may have

-- Safe to send again: a log that is as large as it may be is left alone.
local set = check.fields(meta, "maxEventBytes")[1]
local most = set and check.is_count(set) and tonumber(set) or 0
most = most > 0 and most or event_log.MOST
local length = check.stream(events)
if length == 0 then
  return { 0, 0, most }
end
local size = check.read("stream", "MEMORY", "USAGE", events, "SAMPLES", "5")
if size <= most * times then
  return { 0, size, most }
end
local kept = math.floor(length * most / size * 0.9)
if act == "" then
  return { length - kept, size, most }
end
return { redis.call("XTRIM", events, "MAXLEN", "~", string.format("%.0f", kept), "LIMIT", "10000"), size, most }
