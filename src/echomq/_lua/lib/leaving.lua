--- A job leaves `active`, by the hand of the one that holds its lock (protocol 6.3).

local M = {}

local LONG = 300   -- from here on the end from which LREM walks matters

--- What one call knows about all its jobs: their locks, whether any job is marked as stalled, the middle age of a long list.
function M.survey(q, lock_keys, active_length, marked)
  local state = {
    locks = #lock_keys > 0 and redis.call("MGET", unpack(lock_keys)) or {}, gone = {}, dropped = {}, marked = marked,
  }
  if active_length > LONG then
    local oldest = redis.call("LINDEX", q.active, "-1")
    local newest = redis.call("LINDEX", q.active, "0")
    local from = oldest and redis.pcall("HGET", q.base .. oldest, "processedOn")
    local to = newest and redis.pcall("HGET", q.base .. newest, "processedOn")
    from, to = tonumber(type(from) == "string" and from or ""), tonumber(type(to) == "string" and to or "")
    if from and to then
      state.middle = (from + to) / 2
    end
  end
  return state
end

--- 0 if the token owns the job, else -2 (no lock) or -6 (another's).
function M.owned(state, index, id, token)
  if token == "0" then
    return 0
  end
  local lock = state.locks[index]
  if not lock or state.gone[id] then
    return -2
  end
  return lock == token and 0 or -6
end

--- Writes the fields (flat) and takes the job out. False if it was not in active. Its lock is no lock any more: the caller
--- calls `drop_locks` once for all jobs, before anything else may take one of them.
function M.leave(q, state, id, token, fields)
  local key = q.base .. id
  if token ~= "0" then
    state.dropped[#state.dropped + 1] = key .. ":lock"
    if state.marked then
      redis.call("SREM", q.stalled, id)
    end
    state.gone[id] = true
  end
  if fields and #fields > 0 then
    redis.call("HSET", key, unpack(fields))
  end
  local from_end = "-1"
  if state.middle then
    local started = tonumber(redis.call("HGET", key, "processedOn") or "")
    if started and started > state.middle then
      from_end = "1"
    end
  end
  return redis.call("LREM", q.active, from_end, id) == 1
end

--- Deletes the locks of all that have left.
function M.drop_locks(state)
  if #state.dropped > 0 then
    redis.call("DEL", unpack(state.dropped))
  end
end

return M
