--- @rare
--- @use check place queue_keys queue_meta
--- What the end of a child does to its parent (protocol 8.3, 8.4, 8.5). `look` comes before the first write.

local M = {}

local queues = {}   -- those whose keys have been looked at, by base

--- The keys and settings of a parent's queue; raises BROKEN.
local function queue_of(base)
  local q = queues[base]
  if not q then
    q = queue_keys.of(base)
    check.list(q.wait)
    check.list(q.active)
    check.zset(q.prioritized)
    check.zset(q.delayed)
    check.zset(q.waiting_children)
    check.zset(q.failed)
    check.zset(q.marker)
    check.stream(q.events)
    check.counter(q.pc)
    q.settings = queue_meta.read(q.meta)
    queues[base] = q
  end
  return q
end

--- Reads all that the functions below touch of this parent; raises BROKEN. Returns it as they want it, or nil if it is gone.
function M.look_at(parent_key, base, id)
  local fields = check.fields(parent_key, "name", "priority", "delay")
  if not fields[1] and redis.call("EXISTS", parent_key) == 0 then
    return nil
  end
  local q = queue_of(base)
  check.set(parent_key .. ":dependencies")
  check.hash(parent_key .. ":processed")
  check.hash(parent_key .. ":failed")
  check.zset(parent_key .. ":unsuccessful")
  local delay = tonumber(fields[3] or "")
  if not (delay and delay > 0 and delay < check.EXACT) then
    delay = 0
  end
  return { key = parent_key, id = id, q = q, settings = q.settings, priority = place.priority(fields[2]), delay = delay }
end

--- The same for the parent of a job of the queue with this base.
function M.look(parent_key, child_key, base)
  local named = string.find(parent_key, ":.*:.*:") and redis.pcall("HGET", child_key, "parent")   -- else there is one way only
  local its_base, id = queue_keys.split(parent_key, base, type(named) == "string" and named)
  if not its_base then
    return nil   -- no full key of a job, so no parent of anyone
  end
  return M.look_at(parent_key, its_base, id)
end

--- What the failure of a child does to its parent, by the child's own options: fpof, cpof, idof, rdof, or nil.
function M.policy_of(child_key)
  local text = redis.call("HGET", child_key, "parent")
  local readable, flags = pcall(cjson.decode, text or "{}")
  if not readable or type(flags) ~= "table" then
    return nil   -- no policy that one could read: the job must end all the same
  end
  return flags.fpof == true and "fpof" or flags.cpof == true and "cpof" or flags.idof == true and "idof"
    or flags.rdof == true and "rdof" or nil
end

--- Out of waiting-children and to where it runs. The caller knows that it sits there no more.
local function place_released(parent, delay, now)
  local q, id = parent.q, parent.id
  if delay > 0 then
    local due = now + delay
    redis.call("ZADD", q.delayed, place.whole(due * place.TICK), id)
    redis.pcall("XADD", q.events, "*", "event", "delayed", "jobId", id, "delay", place.whole(due))
    place.mark_delayed(q.delayed, q.marker)
    return
  end
  if parent.priority > 0 then
    redis.call("ZADD", q.prioritized, place.score(parent.priority, q.pc), id)
  else
    redis.call("RPUSH", q.wait, id)
  end
  if not queue_meta.closed(parent.settings, q.active) then
    place.mark(q.marker)
  end
  redis.pcall("XADD", q.events, "*", "event", "waiting", "jobId", id, "prev", "waiting-children")
end

--- Releases the parent if nothing is pending (8.3).
local function release_if_free(parent, now)
  if redis.call("SCARD", parent.key .. ":dependencies") == 0
    and redis.call("ZREM", parent.q.waiting_children, parent.id) == 1 then
    place_released(parent, parent.delay, now)
  end
end

--- Releases a parent that waits for nothing, and that nobody released (the doctor's finding).
function M.release(parent, now)
  release_if_free(parent, now)
end

--- A child completed.
function M.child_completed(parent, child_key, value, now)
  if redis.call("SREM", parent.key .. ":dependencies", child_key) == 1 then
    redis.call("HSET", parent.key .. ":processed", child_key, value)
    release_if_free(parent, now)
  end
end

--- A child failed for good; `policy` is one of fpof, cpof, idof, rdof, or nil (8.4).
function M.child_failed(parent, policy, child_key, reason, now, now_text)
  if not policy or redis.call("SREM", parent.key .. ":dependencies", child_key) == 0 then
    return
  end
  local q = parent.q
  if policy == "fpof" then
    redis.call("ZADD", parent.key .. ":unsuccessful", now_text, child_key)
    local deferred = "child " .. child_key .. " failed"
    if redis.call("ZREM", q.waiting_children, parent.id) == 1 then
      redis.call("HSET", parent.key, "defa", deferred)
      place_released(parent, parent.delay, now)
    elseif redis.call("ZREM", q.delayed, parent.id) == 1 then
      redis.call("HSET", parent.key, "delay", "0", "defa", deferred)
      place_released(parent, 0, now)
    elseif not redis.call("ZSCORE", q.failed, parent.id) then
      redis.call("HSET", parent.key, "defa", deferred)
    end
  elseif policy == "cpof" then
    redis.call("HSET", parent.key .. ":failed", child_key, reason)
    if redis.call("ZREM", q.waiting_children, parent.id) == 1 then
      place_released(parent, parent.delay, now)
    end
  elseif policy == "idof" then
    release_if_free(parent, now)
    redis.call("HSET", parent.key .. ":failed", child_key, reason)
  else
    release_if_free(parent, now)
  end
end

--- A child that had ended runs again: where its end is known, its parent waits for it once more (3.15).
function M.child_runs_again(parent, child_key, from)
  local known
  if from == "completed" then
    known = redis.call("HDEL", parent.key .. ":processed", child_key) == 1
  else
    known = redis.call("ZREM", parent.key .. ":unsuccessful", child_key) == 1
      or redis.call("HDEL", parent.key .. ":failed", child_key) == 1
  end
  if known then
    redis.call("SADD", parent.key .. ":dependencies", child_key)
  end
end

--- A child is cleaned away (8.5, hard). True: the parent has nothing to wait for and is of the same queue, so it goes too.
function M.child_cleaned(parent, child_key, base)
  if redis.call("SREM", parent.key .. ":dependencies", child_key) == 0
    or redis.call("SCARD", parent.key .. ":dependencies") > 0 then
    return false
  end
  local q = parent.q
  if redis.call("ZREM", q.waiting_children, parent.id) == 0 then
    return false
  end
  if q.base == base then
    return true
  end
  redis.call("RPUSH", q.wait, parent.id)
  if not queue_meta.closed(parent.settings, q.active) then
    place.mark(q.marker)
  end
  return false
end

--- A child is removed while it may still be pending: it is detached, and the parent released (8.5, soft).
function M.child_removed(parent, child_key)
  if redis.call("SREM", parent.key .. ":dependencies", child_key) == 0
    or redis.call("SCARD", parent.key .. ":dependencies") > 0 then
    return
  end
  local q = parent.q
  if redis.call("ZREM", q.waiting_children, parent.id) == 1 then
    redis.call("RPUSH", q.wait, parent.id)
    if not queue_meta.closed(parent.settings, q.active) then
      place.mark(q.marker)
    end
    redis.pcall("XADD", q.events, "*", "event", "waiting", "jobId", parent.id, "prev", "waiting-children")
  end
end

return M
