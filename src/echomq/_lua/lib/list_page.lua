--- Pages of a list of jobs, whose head is newest and whose tail runs next, while jobs come and go at both ends. Only reads.

local M = {}

local WINDOW, NEAR, WINDOWS = 1000, 100, 2   -- ids that are looked at in one go; those of them on the unlikely side
local MOVED = 1000    -- jobs that may come and go between two pages so that none is passed over
local ENDS, FEW = 10000, 2   -- as far from each end so many of the anchors are looked for then

-- Positions count in the order that is read in: from the tail, or with `backwards` (the newest first) from the head.
local function slice(list, backwards, from, count)
  if backwards then
    return redis.call("LRANGE", list, tostring(from), tostring(from + count - 1))
  end
  local ids = redis.call("LRANGE", list, tostring(-from - count), tostring(-from - 1))
  local turned = {}
  for index = #ids, 1, -1 do
    turned[#turned + 1] = ids[index]
  end
  return turned
end

M.read = slice

--- The position behind the first of the anchors that is met in this part of the list, or nil.
local function behind(list, backwards, from, count, anchors)
  local found, best
  for index, id in ipairs(slice(list, backwards, from, count)) do
    local rank = anchors[id]
    if rank and (not best or rank < best) then
      best, found = rank, from + index
    end
  end
  return found
end

--- Where to go on: behind the anchor that was read last of those that are still there. `passed` and `left` say how many ids were
--- before and after that place when it was read. Ids of the last page stand in `given` from `first` on, the last one first.
-- Jobs come at the head and go at the tail. Reading towards the head, what has gone is taken from `passed`, and what has come is
-- behind us; reading towards the tail, it is the other way round. So the place is in a known direction from where it was.
function M.find(list, length, backwards, passed, left, given, first)
  local anchors = {}
  for index = first, #given do
    anchors[given[index]] = index
  end
  local low, high = math.min(passed, length - left), math.max(passed, length - left)
  local guess = math.max(0, math.min(backwards and high or low, length))
  local from = backwards and guess - NEAR or guess + NEAR - WINDOW
  for _ = 1, WINDOWS do
    local start, stop = math.max(from, 0), math.min(from + WINDOW, length)
    local found = stop > start and behind(list, backwards, start, stop - start, anchors)
    if found then
      return found
    elseif not backwards and start == 0 then
      return 0   -- all that was read has been fetched
    end
    from = backwards and from + WINDOW or from - WINDOW
  end
  for index = first, math.min(first + FEW - 1, #given) do
    for _, rank in ipairs({ "1", "-1" }) do
      local at = redis.call("LPOS", list, given[index], "RANK", rank, "MAXLEN", tostring(ENDS))
      if at then
        return backwards and at + 1 or length - at
      end
    end
  end
  return math.max(0, low - MOVED)   -- rather once more than not at all
end

return M
