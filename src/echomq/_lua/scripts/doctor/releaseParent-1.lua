--- Whether a parent waits in vain: for nothing, for a child that is gone, or for one that has ended; with `act` it is told.
--- @key waiting_children
--- @arg parent_id
--- @arg child_key
--- @arg act
--- @use clock check queue_keys parents
--- @returns 0 all is well | 1 nothing is pending | 2 the child is gone | 3 it has completed | 4 it has failed, and its parent was to be told

-- Safe to send again: a parent that was told does not wait for that child any more.
-- child_key: "" for a parent that waits for nothing.
local key = base .. parent_id
if not check.read("sorted set", "ZSCORE", waiting_children, parent_id) then
  return 0
end
local parent = parents.look_at(key, base, parent_id)
if not parent then
  return 0
end
local code, policy, told = 0, nil, nil
if child_key == "" then
  code = redis.call("SCARD", key .. ":dependencies") == 0 and 1 or 0
elseif redis.call("SISMEMBER", key .. ":dependencies", child_key) == 1 then
  local child_base, id = queue_keys.split(child_key, base)
  if not child_base or redis.call("EXISTS", child_key) == 0 then
    code = 2
  else
    local child = check.fields(child_key, "returnvalue", "failedReason")
    if check.read("sorted set", "ZSCORE", child_base .. "completed", id) then
      code, told = 3, child[1] or "null"
    elseif check.read("sorted set", "ZSCORE", child_base .. "failed", id) then
      policy = parents.policy_of(child_key)
      if policy then
        code, told = 4, child[2] or ""
      end
    end
  end
end
if act == "" or code == 0 then
  return code
end
local now, now_text = clock.read(clock_given)
redis.call("XTRIM", parent.q.events, "MAXLEN", "~", parent.settings.max_events)   -- first, so that a full memory does not refuse the rest
if code == 1 then
  parents.release(parent, now)
elseif code == 2 then
  redis.call("SREM", key .. ":dependencies", child_key)
  parents.release(parent, now)
elseif code == 3 then
  parents.child_completed(parent, child_key, told, now)
else
  parents.child_failed(parent, policy, child_key, told, now, now_text)
end
return code
