--- The keys of another queue that a transition touches: that of a flow's parent. Those of its own queue come as KEYS.

local M = {}

function M.of(base)
  return {
    base = base,
    wait = base .. "wait", active = base .. "active", prioritized = base .. "prioritized",
    delayed = base .. "delayed", waiting_children = base .. "waiting-children", failed = base .. "failed",
    completed = base .. "completed", paused = base .. "paused", marker = base .. "marker", events = base .. "events",
    meta = base .. "meta", pc = base .. "pc",
  }
end

--- Whether a job of this id would stand in nobody's way: one that our own adds take (options.check_job_id), or a number.
function M.may_be_id(id)
  -- What stands beside the jobs' hashes: the queue's own keys, or what is before the first colon in them.
  local names = ":wait:paused:active:prioritized:delayed:waiting-children:completed:failed:id:pc:meta:events:marker:stalled"
    .. ":stalled-check:limiter:repeat:priority:delay:metrics:de:dn:"
  local _, colons = string.gsub(id, ":", "")
  return id ~= "" and (colons == 0 or colons == 2) and string.sub(id, 1, 2) ~= "0:"
    and not string.find(names, ":" .. string.match(id, "^[^:]*") .. ":", 1, true)
end

--- "{base}{id}" of another job apart; nil where that cannot be. An id may hold colons, and so may a prefix; a queue's name
--- holds none. So of several ways the one counts that `named`, the `parent` field of the other's child, says, if there is
--- one; else that by which the other has our own prefix; else the last colon (protocol 1.3).
function M.split(job_key, base, named)
  local its_base, id = string.match(job_key, "^([^:]+:[^:]+:)([^:]+)$")
  if its_base then
    return its_base, id
  end
  local readable, parent = pcall(cjson.decode, named or "")
  if readable and type(parent) == "table" and type(parent.id) == "string" and type(parent.queueKey) == "string"
    and parent.id ~= "" and parent.queueKey .. ":" .. parent.id == job_key then
    return parent.queueKey .. ":", parent.id
  end
  local prefix = string.match(base, "^(.*:)[^:]*:$")
  if prefix and string.sub(job_key, 1, #prefix) == prefix then
    local queue
    queue, id = string.match(job_key, "^([^:]+:)(.+)$", #prefix + 1)
    if queue then
      return prefix .. queue, id
    end
  end
  its_base, id = string.match(job_key, "^(.*:)([^:]*)$")
  return its_base, id
end

return M
