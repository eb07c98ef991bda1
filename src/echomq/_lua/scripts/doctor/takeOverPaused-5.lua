--- Takes a step of the list that BullMQ 5 paused with over into `wait`: where the queue is open, or where jobs stand in both.
--- @key wait
--- @key paused
--- @key active
--- @key meta
--- @key marker
--- @use check queue_meta place paused_list
--- @returns how many were taken over, and how many are left

-- Safe to send again: what was taken over stands in the list no more.
local settings = queue_meta.read(meta)
local before = check.list(paused)
check.list(active)
check.zset(marker)
if before == 0 or (settings.paused and check.list(wait) == 0) then
  return { 0, 0 }
end
redis.call("LTRIM", paused, "0", "-1")   -- a write that a full memory does not refuse, nor then the move
local left = paused_list.take_over(paused, wait)
if not queue_meta.closed(settings, active) then
  place.mark(marker)
end
return { before - left, left }
