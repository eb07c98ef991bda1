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

--- "{base}{id}" apart, at the last colon (protocol 1.3).
function M.split(job_key)
  local base, id = string.match(job_key, "^(.*:)([^:]*)$")
  return base, id
end

return M
