--- Settings of a queue, which are fields of its `meta`.

local M = {}

--- Sets them: names and values, from `first` of the arguments on; an empty value takes the field away.
function M.set(meta, arguments, first)
  for at = first, #arguments, 2 do
    redis.call("HDEL", meta, arguments[at])   -- first, so that a full memory does not refuse the rest: then limits are wanted most
  end
  for at = first, #arguments, 2 do
    if arguments[at + 1] ~= "" then
      redis.call("HSET", meta, arguments[at], arguments[at + 1])
    end
  end
end

return M
