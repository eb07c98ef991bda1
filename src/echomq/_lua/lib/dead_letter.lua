--- @rare
--- @use check other_queue
--- What a job that fails for good leaves in the queue of dead letters, which stands in the same slot: a job that waits there,
--- with its name and data, and what is known of its end (docs/retries.md).

local M = {}

--- Looks at that queue, whose keys begin with `base`, and reads what goes there of the job at `key`; raises BROKEN.
function M.look(base, key)
  local q = other_queue.look(base)
  local job = check.fields(key, "name", "data")
  return { q = q, name = job[1], data = job[2] }
end

--- Writes it. `opts` lacks the time of its end; `fields` are those that the end of the job itself writes.
function M.write(letter, opts, fields, now, now_text)
  other_queue.add(letter.q, letter.name or "", letter.data or "{}", opts .. now_text .. "}}", now, now_text, fields)
end

return M
