--- The workers of ours that are there. Each renews its record with its sweep; one that does not is dropped by the others'.
-- A field of the hash is one run of a worker; its value is "milliseconds:until:record": when it was written, and until when
-- it holds. The field `seen` says when any worker was last there.

local M = {}

local KEEP_MS = "86400000"   -- a day after the last worker

--- Writes a worker's record; `known` is how many fields the hash has. A full memory does not refuse it.
function M.renew(workers, known, id, record, lives_ms, now, now_text)
  redis.call("PEXPIRE", workers, KEEP_MS)
  redis.call("HSET", workers, id, now_text .. string.format(":%.0f:", now + lives_ms) .. record, "seen", now_text)
  if known == 0 then
    redis.call("PEXPIRE", workers, KEEP_MS)
  end
end

--- Drops what no longer holds: some at random each time, so that all are met in time.
function M.forget(workers, known, now)
  local some = math.max(64, math.min(1000, math.floor(known / 4)))
  local found = redis.call("HRANDFIELD", workers, tostring(some), "WITHVALUES")
  for index = 1, #found, 2 do
    local holds = tonumber(string.match(found[index + 1], "^%d+:(%d+):") or "")
    if found[index] ~= "seen" and not (holds and holds > now) then
      redis.call("HDEL", workers, found[index])
    end
  end
end

return M
