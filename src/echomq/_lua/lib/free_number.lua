--- @rare
--- @use place
--- A number for a job where the counter has gone back, with a restored snapshot or by somebody's hand, so that jobs have the
--- next numbers already.

local M = {}

local ONE_BY_ONE = 10

--- The next number, as text, that no job of the queue has, whose keys begin with `base`; its counter stands there afterwards.
--- Any free number will do, and there may be a million jobs: with strides that double it takes a few looks to be past them.
function M.next(base, counter)
  local looks, stride = 0, 1
  local number
  repeat
    number = place.whole(redis.call("INCRBY", counter, place.whole(stride)))
    looks = looks + 1
    if looks >= ONE_BY_ONE then
      stride = 2 * stride
    end
  until redis.call("EXISTS", base .. number) == 0
  return number
end

return M
