--- @rare
--- @use check new_job place free_number
--- The end of a deduplicated job (protocol 7.4, 7.5).

local M = {}

--- Reads who holds the deduplication id; raises BROKEN. Nothing else of it is read yet.
function M.look(q, deid)
  local key = q.base .. "de:" .. deid
  return { key = key, next_key = q.base .. "dn:" .. deid, owner = check.text(key) }
end

--- Reads the job to add once this one is done, if any; raises BROKEN, and then there is none to add.
function M.look_next(q, found)
  if check.hash(found.next_key) == 0 then
    return
  end
  check.counter(q.id)
  check.counter(q.pc)
  local payload = check.fields(found.next_key, "name", "data", "opts", "jid", "pk", "pd", "pdk", "rjk")
  local readable, opts = pcall(cjson.decode, payload[3] or "{}")
  if not readable or type(opts) ~= "table" then
    opts, payload[3] = {}, "{}"   -- the job must end, and the next one run, whatever somebody wrote there
  end
  if payload[7] then
    check.set(payload[7])
  end
  found.payload, found.opts = payload, opts
end

--- The job is completed or failed for good: its deduplication id is free again, unless it has a time of its own.
local function release(found, job_id)
  local ttl = redis.call("PTTL", found.key)
  if ttl == 0 or (ttl == -1 and found.owner == job_id) then
    redis.call("DEL", found.key)
  end
end

--- Whether another job that has not ended holds the id.
local function is_held(q, owner, job_id)
  return owner and owner ~= job_id and redis.call("EXISTS", q.base .. owner) == 1
    and not redis.call("ZSCORE", q.completed, owner) and not redis.call("ZSCORE", q.failed, owner)
end

--- Adds the job that keepLastIfActive has stored while this one ran. Returns "runnable", "delayed" or nil.
---
--- Where another holds the id by now (this one was retried, or its id was freed by hand), it is that one's end that is waited
--- for: else two of the id would run at once (deviation from protocol 7.5).
function M.add_next(q, found, job_id, deid, now, now_text)
  if not found.payload then
    return nil
  end
  if is_held(q, found.owner, job_id) then
    redis.call("HSET", found.next_key, "owner", found.owner)
    return nil
  end
  local payload, opts = found.payload, found.opts
  local id = free_number.next(q.base, q.id)   -- every add takes a number, whatever its id
  if payload[4] and redis.call("EXISTS", q.base .. payload[4]) == 0 then   -- else somebody has added a job of the kept id
    id = payload[4]
  end
  found.id = id
  local de = type(opts.de) == "table" and opts.de or {}
  local ttl = tonumber(de.ttl)
  if ttl and ttl >= 1 and ttl < check.EXACT and not de.keepLastIfActive then
    redis.call("SET", found.key, id, "PX", string.format("%.0f", ttl))
  else
    redis.call("SET", found.key, id)
  end
  local delay = type(opts.delay) == "number" and opts.delay > 0 and opts.delay < check.EXACT and opts.delay or 0
  local priority = place.priority(opts.priority)
  local extra = { "deid", deid }
  for name, at in pairs({ parentKey = 5, parent = 6, rjk = 8 }) do
    if payload[at] then
      extra[#extra + 1] = name
      extra[#extra + 1] = payload[at]
    end
  end
  new_job.store(q, id, payload[1] or "", payload[2] or "{}", payload[3] or "{}", now_text,
    string.format("%.0f", delay), string.format("%.0f", priority), extra)
  local kind = new_job.put(q, id, now, delay, priority, new_job.at_front(opts))
  if payload[7] then
    redis.call("SADD", payload[7], q.base .. id)
  end
  redis.call("DEL", found.next_key)
  return kind
end

--- Both: the id is freed, and what was to run after this job is added. Returns "runnable", "delayed" or nil.
function M.pass_on(q, found, job_id, deid, now, now_text)
  release(found, job_id)
  local placed = M.add_next(q, found, job_id, deid, now, now_text)
  if placed == "delayed" then
    place.mark_delayed(q.delayed, q.marker)
  end
  return placed
end

return M
