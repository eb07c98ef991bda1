--- The record of each lane's last call: what makes it safe to send a call again.
-- A field of the hash is a lane; its value is "number:milliseconds:packed reply". A number that is already there is
-- answered from the record, a lower one is refused: its caller has long since moved on.

local M = {}

local KEEP_SECONDS = "3660"   -- an hour after the last use, with the minute in which the expiry is not renewed
local RENEW_AFTER_MS = 60000

--- The kept reply of this very call, or nil. Raises STALE for an older one.
function M.find(calls, lane, number)
  local record = redis.pcall("HGET", calls, lane)
  if type(record) == "table" then
    error("BROKEN " .. calls .. " must be a hash", 0)
  end
  M.renewed = nil
  if not record then
    return nil
  end
  local colon = string.find(record, ":", 1, true)
  local second = string.find(record, ":", colon + 1, true)
  local last = tonumber(string.sub(record, 1, colon - 1))
  if number < last then
    error("STALE call " .. number .. " of a lane that is at " .. last, 0)
  end
  M.renewed = tonumber(string.sub(record, colon + 1, second - 1))
  if number == last then
    return cmsgpack.unpack(string.sub(record, second + 1))
  end
  return nil
end

--- Keeps the reply (strings and whole numbers, nested tables allowed) and hands it back.
function M.keep(calls, lane, number, now, now_text, reply)
  redis.call("HSET", calls, lane, string.format("%.0f:", number) .. now_text .. ":" .. cmsgpack.pack(reply))
  if not M.renewed or now - M.renewed > RENEW_AFTER_MS or now < M.renewed then
    redis.call("EXPIRE", calls, KEEP_SECONDS)
  end
  return reply
end

return M
