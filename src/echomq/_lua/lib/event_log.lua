--- @use check
--- What the event log may hold, beside its count of entries: no value that is very large, and not more than so many bytes.

local M = {}

M.LARGEST = 65536   -- bytes of a value that stands elsewhere too; of a larger one the log has the size alone

local HEAVY = 16384   -- who writes values of so many bytes in a call looks after the log's size
M.MOST = 67108864   -- bytes of the log where nobody set another number
local ONE_LOOK = 524288   -- bytes that are written for each look: it takes the server up to a millisecond

--- Cuts the log down if it takes more bytes than `maxEventBytes` of `meta`, ours, or 64 MiB. A step; the next look goes on.
function M.trim(events, meta)
  local size = redis.pcall("MEMORY", "USAGE", events, "SAMPLES", "0")
  if type(size) ~= "number" then   -- there is none, or one may not ask
    return
  end
  local set = redis.pcall("HGET", meta, "maxEventBytes")
  local most = type(set) == "string" and check.is_count(set) and tonumber(set) or 0
  most = most > 0 and most or M.MOST
  if size > most then
    local length = redis.pcall("XLEN", events)
    redis.pcall("XTRIM", events, "MAXLEN", "~", string.format("%.0f", math.floor(length * most / size * 0.9)), "LIMIT", "1000")
  end
end

--- Looks after its size once for about every 512 KiB that are written, in calls that write much; `number` is the call's in its
--- lane, which spreads the looks evenly.
function M.wrote(events, meta, bytes, number)
  if bytes >= HEAVY and (number * 617) % 1024 < bytes * 1024 / ONE_LOOK then
    M.trim(events, meta)
  end
end

return M
