--- Whether a key of our own has lost its expiry, or is left of a queue that is no more; with `act` it expires, or goes.
--- @key meta
--- @key id
--- @key schedulers
--- @arg own_key
--- @arg lasting
--- @arg act
--- @returns 0 all is well | 1 it has no expiry | 2 it is left over

-- Safe to send again: what expires or is gone is not found again.
-- lasting: "1" for a key that has no expiry as long as its queue is there.
if redis.call("PTTL", own_key) ~= -1 then
  return 0
end
if redis.call("EXISTS", meta, id, schedulers) == 0 then
  if act ~= "" then
    redis.call("UNLINK", own_key)
  end
  return 2
end
if lasting == "1" then
  return 0
end
if act ~= "" then
  redis.call("EXPIRE", own_key, "3660")
end
return 1
