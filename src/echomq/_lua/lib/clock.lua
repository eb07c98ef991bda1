--- The one source of time: the server's, unless a test injects another.

local M = {}

--- Milliseconds since the epoch, as a number and as text.
function M.read(given)
  if not redis.REDIS_VERSION_NUM then
    redis.replicate_commands()   -- Redis 6.2 refuses writes after TIME without it
  end
  if given ~= "" then
    return tonumber(given), given
  end
  local time = redis.call("TIME")
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  return now, string.format("%.0f", now)
end

return M
