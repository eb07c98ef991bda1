--- Pages of a sorted set from a member on: a member that keeps its score is met once, whatever comes and goes. Only reads.

local M = {}

--- Whether one member stands before another of the same score: the server orders them by their bytes.
local function before(one, other)
  local shorter = math.min(#one, #other)
  for at = 1, shorter do
    local left, right = string.byte(one, at), string.byte(other, at)
    if left ~= right then
      return left < right
    end
  end
  return #one < #other
end

local function entry(set, rank)
  local found = redis.call("ZRANGE", set, tostring(rank), tostring(rank), "WITHSCORES")
  return found[1], tonumber(found[2])
end

--- How many members stand before the first that comes after this score and member, in the order that is read in.
function M.find(set, backwards, score, member)
  local number = tonumber(score)
  local low, high = 0, redis.call("ZCARD", set)
  -- The first rank, by ascending order, whose entry is not before ours (ascending), or is behind or at it.
  while low < high do
    local middle = math.floor((low + high) / 2)
    local found, its_score = entry(set, middle)
    local is_before = its_score < number or (its_score == number and before(found, member))
    if not backwards and not is_before and its_score == number and found == member then
      is_before = true   -- our own entry has been read
    end
    if is_before then
      low = middle + 1
    else
      high = middle
    end
  end
  return backwards and redis.call("ZCARD", set) - low or low
end

--- Members and scores from this position on, in the order that is read in.
function M.read(set, backwards, from, count)
  local flat = redis.call(backwards and "ZREVRANGE" or "ZRANGE", set, tostring(from), tostring(from + count - 1), "WITHSCORES")
  local members, scores = {}, {}
  for index = 1, #flat, 2 do
    members[#members + 1], scores[#scores + 1] = flat[index], flat[index + 1]
  end
  return members, scores
end

return M
