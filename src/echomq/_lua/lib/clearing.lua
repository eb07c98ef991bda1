--- @use check next_run parents queue_meta job_keys dedup_keys
--- Walks a place where jobs stand and removes those that qualify, in bounded steps (protocol 3.17, 3.18). What stays is passed
--- over by the next step: `skip` is how many that is. An id is taken out by its name, so a step never takes a wrong one.

local M = {}

local LOOK = 1000     -- ids looked at in a step
local MOST = 150      -- jobs removed in a step: some 20 microseconds each
local LONG = 1000     -- as many ids passed over cost as much as a job when one is searched behind them

--- Looks at the place and what belongs to it; raises BROKEN.
function M.look(q, is_list)
  q.settings = queue_meta.read(q.meta)
  if is_list then
    check.list(q.place)
  else
    check.zset(q.place)
  end
  check.zset(q.schedulers)
  check.stream(q.events)
end

local function read(q, id)
  local found = redis.pcall("HMGET", q.base .. id, "timestamp", "processedOn", "finishedOn", "rjk", "deid", "parentKey")
  if found.err then
    found = {}   -- what stands there is no job
  end
  return {
    id = id, timestamp = tonumber(found[1] or ""), processed = tonumber(found[2] or ""), finished = tonumber(found[3] or ""),
    scheduler = found[4], deid = found[5], parent_key = found[6],
  }
end

local function release_dedup(q, id, deid)
  local whole, keys = pcall(dedup_keys.of, q.base, id, deid)
  if whole and #keys > 0 then
    redis.call("UNLINK", unpack(keys))
  end
end

--- Takes a child away from its parent. A parent of this queue that then waits for nothing goes with it, and so on upwards.
local function detach(q, key, parent_key)
  local readable, parent = pcall(parents.look, parent_key, key, q.base)
  if not (readable and parent and parents.child_cleaned(parent, key, q.base)) then
    return
  end
  local above = redis.call("HMGET", parent.key, "parentKey", "deid")
  if above[1] then
    detach(q, parent.key, above[1])
  end
  if above[2] then
    release_dedup(q, parent.id, above[2])
  end
  job_keys.delete(parent.key)
end

local function remove(q, is_list, job)
  local key = q.base .. job.id
  if is_list then
    redis.call("LREM", q.place, "-1", job.id)
  else
    redis.call("ZREM", q.place, job.id)
  end
  if job.deid then
    release_dedup(q, job.id, job.deid)
  end
  if job.parent_key then
    detach(q, key, job.parent_key)
  end
  job_keys.delete(key)
end

--- One step. Lists are walked from their tail, the oldest first, and sets from the lowest score. `qualifies(job)` decides; the
--- run that a schedule waits for always stays. With `up_to`, only those of a set with such a score at most. Returns the ids that were removed, how many to pass over next, whether more follow.
function M.step(q, is_list, skip, most, up_to, qualifies)
  redis.call("XTRIM", q.events, "MAXLEN", "~", q.settings.max_events)   -- first, so that a full memory does not refuse the rest
  local ids
  if is_list then
    ids = redis.call("LRANGE", q.place, tostring(-skip - LOOK), tostring(-skip - 1))
  elseif up_to then
    ids = redis.call("ZRANGEBYSCORE", q.place, "-inf", up_to, "LIMIT", tostring(skip), tostring(LOOK))
  else
    ids = redis.call("ZRANGE", q.place, tostring(skip), tostring(skip + LOOK - 1))
  end
  local removed, spent, looked = {}, 0, 0
  for index = 1, #ids do
    if spent >= MOST or #removed >= most then
      break
    end
    looked = index
    local job = read(q, is_list and ids[#ids - index + 1] or ids[index])
    if qualifies(job) and not next_run.is(q.schedulers, job.id, job.scheduler) then
      remove(q, is_list, job)
      removed[#removed + 1] = job.id
      spent = spent + 1 + (is_list and skip / LONG or 0) + (job.parent_key and 1 or 0)
    else
      skip = skip + 1
    end
  end
  return removed, skip, (looked < #ids or #ids == LOOK) and 1 or 0
end

return M
