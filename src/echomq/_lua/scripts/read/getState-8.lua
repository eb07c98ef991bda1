--- In which state a job is (protocol 3.1).
--- @key completed
--- @key failed
--- @key delayed
--- @key prioritized
--- @key active
--- @key wait
--- @key paused
--- @key waiting_children
--- @arg job_id
--- @use state
--- @returns completed | failed | delayed | prioritized | active | waiting | waiting-children | unknown

return state.of({
  completed = completed, failed = failed, delayed = delayed, prioritized = prioritized, active = active, wait = wait,
  paused = paused, waiting_children = waiting_children,
}, job_id)
