--- @use check
--- The record of each lane's last call: what makes it safe to send a call again.
-- A field of the hash is a lane; its value is "number:milliseconds:packed reply", where the milliseconds say when the lane
-- last renewed the expiry of the hash, at most a minute before its last call. A number that is already there is
-- answered from the record, a lower one is refused: its caller has long since moved on.

local M = {}

local KEEP_SECONDS = "3660"   -- an hour after the last use, with the minute in which the expiry is not renewed
local RENEW_AFTER_MS = 60000
local FORGET_AFTER_MS = 3660000   -- an hour, and the minute that a record's time may lie before its last call
local LOOK_AT = 8

--- The kept reply of this very call, or nil. Raises STALE for an older one, and where no record of ours stands: the caller
--- then begins a new lane.
function M.find(calls, lane, number)
  local record = redis.pcall("HGET", calls, lane)
  if type(record) == "table" then
    check.refuse(record.err, "HGET", calls, "hash")
  end
  if not record then
    return nil
  end
  local last, renewed, packed_at = string.match(record, "^(%d+):(%d+):()")
  if not last then
    error("STALE call " .. number .. " of a lane whose record in " .. calls .. " is none of ours", 0)
  end
  if number < tonumber(last) then
    error("STALE call " .. number .. " of a lane that is at " .. last, 0)
  end
  M.renewed = renewed
  if number == tonumber(last) then
    return cmsgpack.unpack(string.sub(record, packed_at))
  end
  return nil
end

--- Drops the records of other lanes that nobody has used for an hour, among `some` at random: so all are met in time.
function M.forget(calls, lane, now, some)
  local lanes = redis.call("HRANDFIELD", calls, tostring(some), "WITHVALUES")
  for index = 1, #lanes, 2 do
    local used = tonumber(string.match(lanes[index + 1], "^%d+:(%d+):") or "")
    if lanes[index] ~= lane and used and now - used > FORGET_AFTER_MS then
      redis.call("HDEL", calls, lanes[index])
    end
  end
end

--- Keeps the reply (strings and whole numbers, nested tables allowed) and hands it back.
function M.keep(calls, lane, number, now, now_text, reply)
  local renewed = tonumber(M.renewed)
  local due = not renewed or now - renewed > RENEW_AFTER_MS or now < renewed
  redis.call("HSET", calls, lane,
    string.format("%.0f:", number) .. (due and now_text or M.renewed) .. ":" .. cmsgpack.pack(reply))
  if due then
    redis.call("EXPIRE", calls, KEEP_SECONDS)
  end
  if not renewed then   -- a new lane: where no worker sweeps, short-lived producers would leave theirs for ever
    M.forget(calls, lane, now, LOOK_AT)
  end
  return reply
end

return M
