--- Removes the jobs of one place that were there when draining began (protocol 3.17), but not the next runs of schedules. In steps.
--- @key wait
--- @key paused
--- @key prioritized
--- @key delayed
--- @key id
--- @key schedulers
--- @key meta
--- @key events
--- @key calls
--- @arg place_name
--- @arg skip number
--- @arg since
--- @arg counted
--- @use clock check place clearing
--- @lane
--- @returns now, how many were removed, how many to pass over next, 1 if more follow, and when and at which number draining began

-- A job that was added meanwhile has a higher number than the counter had, or a later time; it stays.
local is_list = place_name == "wait" or place_name == "paused"
local q = {
  base = base, place = ({ wait = wait, paused = paused, prioritized = prioritized, delayed = delayed })[place_name],
  schedulers = schedulers, meta = meta, events = events,
}
clearing.look(q, is_list)
local now, now_text = clock.read(clock_given)
if since == "" then
  since, counted = now_text, place.whole(check.counter(id))
end
local latest, last_number = tonumber(since), tonumber(counted)

local removed, next_skip, more = clearing.step(q, is_list, skip, math.huge, nil, function(job)
  local job_number = check.is_count(job.id) and tonumber(job.id)
  return not (job_number and job_number > last_number) and not (job.timestamp and job.timestamp > latest)
end)
return calls_kept.keep(calls, lane, number, now, now_text, { now_text, #removed, next_skip, more, since, counted })
