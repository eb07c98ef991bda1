--- @rare
--- @use check queue_keys queue_meta place new_job free_number
--- Another queue, in the same slot or on a server without slots, that gets a job which waits there: looked at before the first
--- write of the script, then written to.

local M = {}

local looked = {}   -- one look for all jobs of the call: whatever we write there keeps its type

--- The keys and settings of the queue whose keys begin with `base`; raises BROKEN.
function M.look(base)
  if looked[base] then
    return looked[base]
  end
  local q = queue_keys.of(base)
  q.settings = queue_meta.read(q.meta)
  check.list(q.wait)
  check.zset(q.marker)
  check.stream(q.events)
  if q.settings.concurrency then
    check.list(q.active)
  end
  q.id = base .. "id"
  if check.counter(q.id) >= check.EXACT / 2 then   -- beyond, there may be no number left for all that come
    error("BROKEN " .. q.id .. " must be a number that can be counted on", 0)
  end
  looked[base] = q
  return q
end

--- Adds a job under a number of that queue; `fields` are further ones of its hash, flat, or nil.
function M.add(q, name, data, opts, now, now_text, fields)
  if not q.trimmed then
    redis.call("XTRIM", q.events, "MAXLEN", "~", q.settings.max_events)
    queue_meta.write_default(q.meta, q.settings)
    q.trimmed = true
  end
  local id = free_number.next(q.base, q.id)
  new_job.store(q, id, name, data, opts, now_text, "0", "0", fields)
  new_job.put(q, id, now, 0, 0)
  if not queue_meta.closed(q.settings, q.active) then
    place.mark(q.marker)
  end
end

return M
