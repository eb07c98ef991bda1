--- Hands outcomes that wait in the outbox to the queue's one forwarder, and removes those that it has forwarded.
--- @key outbox
--- @key forwarding
--- @arg forwarder
--- @arg lease_ms
--- @arg after
--- @arg done number
--- @arg known number
--- @arg avoided number
--- @rest
--- @use check
--- @returns milliseconds for which another forwards (0: nobody does), the last entry looked at ("": all were), how many were passed over, then five values of each that was taken: entry, id of its job, where the server is ("" for this one), what the keys of the queue there begin with, data

-- Arguments that follow: entries that have been forwarded; other servers that the forwarder knows, as "where base"; those of all
-- that it wants nothing for at the moment, the same way. It is safe to send again: an entry that is gone stays gone, and
-- a lease is renewed by who holds it. Without the lease, two would forward all twice; under one id, so no job is there twice.
local MOST, MOST_BYTES = 100, 1048576
local LOOK, CHUNK = 1000, 10   -- a chunk at a time: entries may be large

check.stream(outbox)
local holder = check.text(forwarding)
if done > 0 then
  redis.call("XDEL", outbox, unpack(ARGV, rest, rest + done - 1))   -- whoever holds the lease by now
end
local left = holder and holder ~= forwarder and redis.call("PTTL", forwarding) or 0
if left > 0 then
  return { left, "", 0 }
end

local known_ones, avoided_ones = {}, {}
for index = rest + done, rest + done + known - 1 do
  known_ones[ARGV[index]] = true
end
for index = rest + done + known, rest + done + known + avoided - 1 do
  avoided_ones[ARGV[index]] = true
end

local reply, taken, bytes, looked, passed = { 0, "", 0 }, 0, 0, 0, 0
local from, last, full = after ~= "" and "(" .. after or "-", after, false
repeat
  local entries = redis.call("XRANGE", outbox, from, "+", "COUNT", tostring(CHUNK))
  for _, entry in ipairs(entries) do
    local id, to, at, data = entry[2][2], entry[2][4], entry[2][6], entry[2][8]
    local name = (at or "") .. " " .. (to or "")
    local wanted = data and not avoided_ones[name] and (at == "" or known_ones[name])
    full = taken == MOST or looked == LOOK or (wanted and taken > 0 and bytes + #data > MOST_BYTES)
    if full then
      break
    end
    looked, last, from = looked + 1, entry[1], "(" .. entry[1]
    if wanted then
      for _, value in ipairs({ entry[1], id, at, to, data }) do
        reply[#reply + 1] = value
      end
      taken, bytes = taken + 1, bytes + #data
    elseif not avoided_ones[name] then
      passed = passed + 1
    end
  end
until full or #entries < CHUNK
reply[2], reply[3] = full and last or "", passed

if taken > 0 or full then
  redis.call("SET", forwarding, forwarder, "PX", lease_ms)
elseif holder then
  redis.call("DEL", forwarding)   -- all done, as far as this one can
end
return reply
