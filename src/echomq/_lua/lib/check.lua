--- Looks at a key before the first write. A script is not rolled back when it fails, so what could make a later
--- command fail is found here: the error names the key, and nothing has changed yet.

local M = {}

M.EXACT = 9007199254740992   -- up to here a whole number is exact, in Lua as in JavaScript

--- What the server's refusal of a look means: another type, or a right that is missing, and of which we say the command, since
--- not every server does.
function M.refuse(refusal, command, key, kind)
  if string.find(refusal, "WRONGTYPE", 1, true) then
    error("BROKEN " .. key .. " must be a " .. kind, 0)
  end
  error("REFUSED " .. command .. " of " .. key .. ": " .. (string.gsub(refusal, "^ERR ", "")), 0)
end

local function length(command, key, kind)
  local found = redis.pcall(command, key)
  if type(found) ~= "number" then
    M.refuse(found.err, command, key, kind)
  end
  return found
end

function M.list(key) return length("LLEN", key, "list") end
function M.set(key) return length("SCARD", key, "set") end
function M.zset(key) return length("ZCARD", key, "sorted set") end
function M.hash(key) return length("HLEN", key, "hash") end
function M.stream(key) return length("XLEN", key, "stream") end

--- The text of a string key, or false.
function M.text(key)
  local found = redis.pcall("GET", key)
  if type(found) == "table" then
    M.refuse(found.err, "GET", key, "string")
  end
  return found
end

--- Whether the server can count on from this text: it takes "7" and "-7", not "07", "+7" or "7.0".
function M.is_count(text)
  return #text < 19 and (text == "0" or string.find(text, "^%-?[1-9]%d*$") ~= nil)
end

--- The value of a counter, 0 when it is absent.
function M.counter(key)
  local found = M.text(key)
  if not found then
    return 0
  end
  if not M.is_count(found) then
    error("BROKEN " .. key .. " must be a whole number", 0)
  end
  return tonumber(found)
end

--- Counts on by `step` and returns what it comes to: the look at the counter and the write in one. For the first write.
function M.count_up(key, step)
  local found = redis.pcall("INCRBY", key, step)
  if type(found) == "number" then
    return found
  end
  local why = found.err
  if string.find(why, "WRONGTYPE", 1, true) then
    error("BROKEN " .. key .. " must be a string", 0)
  elseif string.find(why, "not an integer", 1, true) or string.find(why, "overflow", 1, true) then
    error("BROKEN " .. key .. " must be a whole number", 0)
  end
  return redis.call("INCRBY", key, step)   -- a full memory, a replica: refused again, in the server's own words
end

--- The named fields of a hash.
function M.fields(key, ...)
  local found = redis.pcall("HMGET", key, ...)
  if found.err then
    M.refuse(found.err, "HMGET", key, "hash")
  end
  return found
end

--- What a command answers; `kind` is the type that its key must have.
function M.read(kind, command, key, ...)
  local found = redis.pcall(command, key, ...)
  if type(found) == "table" and found.err then
    M.refuse(found.err, command, key, kind)
  end
  return found
end

return M
