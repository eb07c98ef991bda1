--- How long it is until the rate window opens again (protocol 3.23). Writes nothing, not even to drop a counter that has run out.
--- @key limiter
--- @key meta
--- @arg most
--- @use clock check place queue_meta
--- @returns milliseconds, 0 if it is open

-- `most` is a worker's own maximum, "" to ask for the queue's.
local settings = queue_meta.read(meta)
local used = check.text(limiter)
local now = clock.read(clock_given)
local max = tonumber(most) or settings.max or (settings.limited_until and now < settings.limited_until and tonumber(place.MANUAL))
if not (used and max and (tonumber(used) or 0) >= max) then
  return 0
end
return math.max(redis.call("PTTL", limiter), 0)
