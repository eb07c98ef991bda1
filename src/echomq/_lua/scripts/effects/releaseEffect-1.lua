--- Gives a claim up, so that the next delivery need not wait for the lease to end. Safe to send again.
--- @key effect
--- @arg owner
--- @use check
--- @returns 1 given up | 0 it has gone, belongs to another or is done

if check.text(effect) ~= "R" .. owner then
  return 0
end
return redis.call("DEL", effect)
