--- Keeps an effect's result, for later deliveries. The first result stays, whoever holds the lease by now: that effect has
--- happened. Safe to send again: the owner of the kept result is told again that it is kept.
--- @key effect
--- @arg owner
--- @arg result
--- @arg expire_ms
--- @use check
--- @returns {1} kept | {2, result} another's was kept before

local found = check.text(effect)
if found then
  local _, _, theirs, kept = string.find(found, "^D([^:]*):(.*)$")
  if theirs then
    return theirs == owner and { 1 } or { 2, kept }
  end
end
redis.call("DEL", effect)   -- first, and allowed when memory is full
redis.call("SET", effect, "D" .. owner .. ":" .. result, "PX", expire_ms)
return { 1 }
