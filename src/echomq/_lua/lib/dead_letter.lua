--- @rare
--- @use check queue_keys queue_meta place new_job
--- What a job that fails for good leaves in the queue of dead letters, which stands in the same slot: a job that waits there,
--- with its name and data, and what is known of its end (docs/retries.md).

local M = {}

--- Looks at that queue, whose keys begin with `base`, and reads what goes there of the job at `key`; raises BROKEN.
function M.look(base, key)
  local q = queue_keys.of(base)
  q.settings = queue_meta.read(q.meta)
  check.list(q.wait)
  check.zset(q.marker)
  check.stream(q.events)
  if q.settings.concurrency then
    check.list(q.active)
  end
  q.id = base .. "id"
  local counted = check.counter(q.id)
  local number, stride = counted + 1, 1
  while redis.call("EXISTS", base .. place.whole(number)) == 1 do
    -- The counter went back, with a restored snapshot perhaps. Any free number will do, and there may be a million letters:
    -- with strides that double it takes a few looks to be past them.
    number, stride = number + stride, 2 * stride
  end
  if number >= check.EXACT then
    error("BROKEN " .. q.id .. " must be a number that can be counted on", 0)
  end
  local job = check.fields(key, "name", "data")
  return { q = q, id = place.whole(number), steps = place.whole(number - counted), name = job[1], data = job[2] }
end

--- Writes it. `opts` lacks the time of its end; `fields` are those that the end of the job itself writes.
function M.write(letter, opts, fields, now, now_text)
  local q = letter.q
  redis.call("XTRIM", q.events, "MAXLEN", "~", q.settings.max_events)
  redis.call("INCRBY", q.id, letter.steps)
  queue_meta.write_default(q.meta, q.settings)
  new_job.store(q, letter.id, letter.name or "", letter.data or "{}", opts .. now_text .. "}}", now_text, "0", "0", fields)
  new_job.put(q, letter.id, now, 0, 0)
  if not queue_meta.closed(q.settings, q.active) then
    place.mark(q.marker)
  end
end

return M
