--- @rare
--- The retention rule that a job itself asks for, where no worker reads its options (protocol 3.5.3).

local M = {}

local MOST = 1e12   -- far beyond every number that means something

local function whole(value, least)
  if type(value) ~= "number" or value ~= value then
    return nil
  end
  value = math.max(-MOST, math.min(MOST, value))
  return value >= least and value or nil
end

--- What its `removeOnFail` says, as `retention.rule` has it; nil if it says nothing that one can read.
function M.of_failed(text)
  local readable, opts = pcall(cjson.decode, text or "")
  local said
  if readable and type(opts) == "table" then
    said = opts.removeOnFail
  end
  if type(said) == "boolean" then
    return { count = said and 0 or -1, limit = 1000 }
  end
  if type(said) == "table" then
    local count, age, limit = whole(said.count, -MOST), whole(said.age, 0), whole(said.limit, 0)
    if not (count or type(said.age) == "number" or type(said.limit) == "number") then
      return nil
    end
    return {
      count = count and math.max(-1, math.floor(count)) or -1, age = age and math.ceil(age),
      limit = limit and math.floor(limit) or 1000,
    }
  end
  local count = whole(said, -MOST)
  return count and { count = math.max(-1, math.floor(count)), limit = 1000 } or nil
end

return M
