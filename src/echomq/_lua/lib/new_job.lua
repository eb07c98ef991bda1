--- @use place
--- Stores a job and puts it where it belongs (protocol 3.2, steps 7 and 8). `q` has the keys of its queue; the caller has checked
--- them, writes the markers once a call by what `put` says, and trims the event log.

local M = {}

--- The hash and its first event. `extra` are further fields, flat, or nil.
function M.store(q, id, name, data, opts, timestamp, delay, priority, extra)
  local key = q.base .. id
  if extra and #extra > 0 then
    redis.call("HSET", key, "name", name, "data", data, "opts", opts, "timestamp", timestamp, "delay", delay,
      "priority", priority, unpack(extra))
  else
    redis.call("HSET", key, "name", name, "data", data, "opts", opts, "timestamp", timestamp, "delay", delay,
      "priority", priority)
  end
  redis.pcall("XADD", q.events, "*", "event", "added", "jobId", id, "name", name)
end

--- The delay of a job that is to be due at a moment: "0" for one that has passed.
function M.delay_until(due, timestamp, now)
  due = tonumber(due)
  return due > now and place.whole(math.max(0, due - tonumber(timestamp))) or "0"
end

--- Whether options ask for the front of the line; with JSON's null they do not.
function M.at_front(opts)
  return opts.lifo and opts.lifo ~= cjson.null
end

--- Into delayed, prioritized or wait. Returns "delayed" or "runnable": which marker the caller owes.
function M.put(q, id, timestamp, delay, priority, lifo)
  if delay > 0 then
    local due = timestamp + delay
    redis.call("ZADD", q.delayed, place.due_score(q.delayed, due), id)
    redis.pcall("XADD", q.events, "*", "event", "delayed", "jobId", id, "delay", place.whole(due))
    return "delayed"
  end
  if priority > 0 then
    redis.call("ZADD", q.prioritized, place.score(priority, q.pc), id)
  elseif lifo then
    redis.call("RPUSH", q.wait, id)
  else
    redis.call("LPUSH", q.wait, id)
  end
  redis.pcall("XADD", q.events, "*", "event", "waiting", "jobId", id)
  return "runnable"
end

return M
