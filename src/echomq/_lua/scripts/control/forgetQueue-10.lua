--- The last step of an obliteration (protocol 3.20): the keys that a queue has once, its pause among them, if no job is left.
--- @key waiting_children
--- @key active
--- @key schedulers
--- @key delayed
--- @key completed
--- @key failed
--- @key prioritized
--- @key wait
--- @key paused
--- @key meta
--- @rest
--- @use check
--- @returns 1 none of them is left | 0 jobs or schedules have been added | -1 the queue is not paused

-- In no lane, since the record of its lanes goes too. Safe to send again: what has gone is not there to be removed, and whoever
-- uses the queue anew by then has not paused it.
if check.read("hash", "HEXISTS", meta, "paused") == 0 and redis.call("EXISTS", meta) == 1 then
  return -1
end
if redis.call("EXISTS", waiting_children, active, schedulers, delayed, completed, failed, prioritized, wait, paused) > 0 then
  return 0
end
redis.call("UNLINK", unpack(ARGV, rest))
return 1
