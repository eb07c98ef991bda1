--- Removes a job, and with it its children (protocol 3.19). At most 150 of them a call, the deepest first, which for a deep
--- tree takes calls that begin further down; nothing is removed while any of those looked at is being run.
--- @key wait
--- @key paused
--- @key schedulers
--- @key events
--- @key calls
--- @arg job_id
--- @arg with_children
--- @arg begin_at
--- @use clock check queue_meta queue_keys place paused_list parents job_keys dedup_keys
--- @lane
--- @returns now, 1 gone | 2 some of its children are gone: call again | 3 none is gone yet: remove what begins at this key first, then call again | 0 it or a child is being run | -8 the current iteration of a scheduler; the key

-- begin_at: the full key of a job below it, if only what begins there is to be removed; "" for the job itself.

local MOST = 150      -- a job costs some 20 microseconds
local LONG = 2000     -- elements of a list that cost as much to search as a job

-- Where a job keeps its children, those that are done first: as long as one is left in the last, the parent cannot start.
-- What is dropped there is a child that is gone, also where the parent is, and so nobody told it.
local FAMILY = {
  { ending = ":processed", kind = "hash", all = "HKEYS", some = "HRANDFIELD", drop = "HDEL" },
  { ending = ":failed", kind = "hash", all = "HKEYS", some = "HRANDFIELD", drop = "HDEL" },
  { ending = ":unsuccessful", kind = "zset", all = "ZRANGE", drop = "ZREM" },
  { ending = ":dependencies", kind = "set", all = "SMEMBERS", some = "SRANDMEMBER", drop = "SREM" },
}

local HOLDERS = {
  { "completed", "ZREM" }, { "waiting-children", "ZREM" }, { "delayed", "ZREM" }, { "failed", "ZREM" },
  { "prioritized", "ZREM" }, { "wait", "LREM" }, { "paused", "LREM" }, { "active", "LREM" },
}

local queues = {}
local spent, locked, any_gone = 0, false, false
local seen = {}
local deeper   -- the first whose children were too far down to be looked at

--- The keys of a queue that has jobs of this tree, looked at once. A job costs more where it must be searched in long lists.
local function queue_of(its_base)
  local q = queues[its_base]
  if not q then
    q = queue_keys.of(its_base)
    q.settings = queue_meta.read(q.meta)
    q.cost = 1 + math.floor((check.list(q.wait) + check.list(q.paused) + check.list(q.active)) / LONG)
    for _, set in ipairs({ q.completed, q.waiting_children, q.delayed, q.failed, q.prioritized, q.marker }) do
      check.zset(set)
    end
    check.stream(q.events)
    queues[its_base] = q
  end
  return q
end

local function children_in(key, family)
  local count = check[family.kind](key)
  if count == 0 then
    return {}, 0
  end
  if family.kind == "zset" then
    return redis.call("ZRANGE", key, "0", tostring(MOST - 1)), count
  end
  if count > MOST then
    return redis.call(family.some, key, tostring(MOST)), count
  end
  return redis.call(family.all, key), count
end

--- Reads a job and, as far as the budget goes, those below it. `whole`: all of them were reached, so it can be removed.
local function visit(key, its_base, id, is_below)
  local job = check.fields(key, "parentKey", "deid", "rjk")
  local node = { key = key, id = id, q = queue_of(its_base), parent_key = job[1], rjk = job[3], children = {}, whole = true }
  locked = locked or redis.call("EXISTS", key .. ":lock") == 1
  if job[2] then
    node.dedup = dedup_keys.of(its_base, id, job[2])
  end
  spent = spent + node.q.cost
  if with_children == "1" and redis.call("EXISTS", key .. ":processed", key .. ":failed", key .. ":unsuccessful",
    key .. ":dependencies") > 0 then
    for _, family in ipairs(FAMILY) do
      local found, count = children_in(key .. family.ending, family)
      node.whole = node.whole and count == #found
      for _, child_key in ipairs(found) do
        if not seen[child_key] then
          if spent >= MOST and (is_below or #node.children > 0) then
            node.whole, deeper = false, deeper or key
            break
          end
          seen[child_key] = true
          local child_base, child_id = queue_keys.split(child_key, base)
          if not child_base then
            error("BROKEN " .. child_key .. " must be the full key of a job", 0)
          end
          local child = visit(child_key, child_base, child_id, true)
          child.family = family
          node.children[#node.children + 1] = child
          node.whole = node.whole and child.whole
        end
      end
    end
    if #node.children > 0 then
      node.as_parent = parents.look_at(key, its_base, id)
    end
  end
  return node
end

local function remove(node, parent)
  if node.whole and parent then
    parents.child_removed(parent, node.key)
  end
  for _, child in ipairs(node.children) do
    remove(child, node.as_parent)
    if child.whole and not node.whole then
      redis.call(child.family.drop, node.key .. child.family.ending, child.key)
    end
  end
  if not node.whole then
    return
  end
  any_gone = true
  local q, previous = node.q, "unknown"
  for _, holder in ipairs(HOLDERS) do
    local at = q.base .. holder[1]
    local out = holder[2] == "ZREM" and redis.call("ZREM", at, node.id) or redis.call("LREM", at, "0", node.id)
    if out > 0 then
      previous = holder[1]
      break
    end
  end
  if node.dedup and #node.dedup > 0 then
    redis.call("UNLINK", unpack(node.dedup))
  end
  if job_keys.delete(node.key) > 0 then
    redis.pcall("XADD", q.events, "MAXLEN", "~", q.settings.max_events, "*", "event", "removed", "jobId", node.id,
      "prev", previous)
  end
  q.freed = q.freed or previous == "active"
end

local own = queue_of(base)
local root_key, root_base, root_id = base .. job_id, base, job_id
if begin_at ~= "" then
  root_key, root_base, root_id = begin_at, queue_keys.split(begin_at, base)
end
seen[root_key] = true
local root = visit(root_key, root_base, root_id, false)
local its_parent = root.parent_key and parents.look(root.parent_key, root.key, root_base)
local iteration = root.rjk and check.read("sorted set", "ZSCORE", schedulers, root.rjk)
local now, now_text = clock.read(clock_given)

redis.call("XTRIM", events, "MAXLEN", "~", own.settings.max_events)   -- first, so that a full memory does not refuse the rest
local code
if iteration and job_id == "repeat:" .. root.rjk .. ":" .. place.whole(tonumber(iteration)) then
  code = -8
elseif locked then
  code = 0
else
  if own.settings.paused then
    paused_list.take_over(paused, wait)
  end
  remove(root, its_parent)
  for _, q in pairs(queues) do
    if q.freed and redis.call("LLEN", q.wait) + redis.call("ZCARD", q.prioritized) > 0
      and not queue_meta.closed(q.settings, q.active) then
      place.mark(q.marker)   -- its slot is free: another job may run
    end
  end
  code = root.whole and 1 or any_gone and 2 or 3
end
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, code, code == 3 and deeper or "" })
