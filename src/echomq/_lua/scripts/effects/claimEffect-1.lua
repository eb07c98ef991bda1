--- Claims an effect for its caller, unless it has been applied or another is applying it. Safe to send again: a claim by
--- the owner is granted once more, which is also how a lease is renewed.
--- @key effect
--- @arg owner
--- @arg lease_ms
--- @use check
--- @returns {1} granted | {2, result} applied | {0, ms} another has it for at most so long

-- The key holds "R" and the owner while the effect runs, "D", the owner, ":" and the result once it is done. It always expires.
local found = check.text(effect)
if found then
  local _, _, result = string.find(found, "^D[^:]*:(.*)$")
  if result then
    return { 2, result }
  end
  if found ~= "R" .. owner then
    return { 0, redis.call("PTTL", effect) }
  end
end
redis.call("SET", effect, "R" .. owner, "PX", lease_ms)
return { 1 }
