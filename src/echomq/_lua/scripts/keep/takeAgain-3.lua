--- After an outage: takes jobs again whose lock has expired, but which nobody else has started since (design: after an outage).
--- @key active
--- @key stalled
--- @key calls
--- @arg lock_ms
--- @arg count number
--- @rest
--- @use clock check leaving
--- @lane
--- @returns now, then for each job 1 (locked again under its own token) or 0 (lost)

-- A job is three arguments: id, its token, the `ats` of our fetch.
check.list(active)
check.set(stalled)
local now, now_text = clock.read(clock_given)
local reply, again, wanted = { now_text }, {}, {}
for index = 0, count - 1 do
  wanted[ARGV[rest + index * 3]] = true
end
local here = {}
for _, id in ipairs(redis.call("LRANGE", active, "0", "-1")) do
  if wanted[id] then
    here[id] = true
  end
end
for index = 0, count - 1 do
  local id, token, starts = ARGV[rest + index * 3], ARGV[rest + index * 3 + 1], ARGV[rest + index * 3 + 2]
  local key = base .. id
  local lock = redis.pcall("GET", key .. ":lock")
  local kept_starts = redis.pcall("HGET", key, "ats")
  if lock == token or (not lock and here[id] and kept_starts == starts) then
    again[#again + 1] = { id, key, token }
    reply[#reply + 1] = 1
  else
    reply[#reply + 1] = 0
  end
end
for _, job in ipairs(again) do
  redis.call("SREM", stalled, job[1])
  redis.call("SET", job[2] .. ":lock", job[3], "PX", lock_ms)
end
return calls_kept.keep(calls, lane, number, now, now_text, reply)
