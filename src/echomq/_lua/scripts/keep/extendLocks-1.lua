--- Renews the locks of running jobs (protocol 6.2). Safe to send again as it is: it only lengthens what its token owns.
--- @key stalled
--- @arg lock_ms
--- @arg count number
--- @rest
--- @use check
--- @returns the ids whose lock has gone or belongs to another

check.set(stalled)
local lost, alive, keys = {}, {}, {}
for index = 0, count - 1 do
  keys[index + 1] = base .. ARGV[rest + index * 2] .. ":lock"
end
local locks = redis.call("MGET", unpack(keys))
for index = 0, count - 1 do
  local id, token = ARGV[rest + index * 2], ARGV[rest + index * 2 + 1]
  if locks[index + 1] == token then
    alive[#alive + 1] = id
  else
    lost[#lost + 1] = id
  end
end
if #alive > 0 then
  redis.call("SREM", stalled, unpack(alive))   -- first, and allowed when memory is full
  for index = 0, count - 1 do
    if locks[index + 1] == ARGV[rest + index * 2 + 1] then
      redis.call("SET", keys[index + 1], locks[index + 1], "PX", lock_ms)
    end
  end
end
return lost
