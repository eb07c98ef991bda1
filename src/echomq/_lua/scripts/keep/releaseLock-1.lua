--- Gives a lock up (protocol 6.2). Safe to send again as it is: a second time there is nothing left to give up.
--- @key lock
--- @arg token
--- @use check
--- @returns 1 given up | 0 it has gone or belongs to another

if check.text(lock) ~= token then
  return 0
end
return redis.call("DEL", lock)
