--- @rare
--- @use check
--- What a job that is removed leaves of its deduplication id (protocol 7.4).

local M = {}

--- The keys that go with the job: the id, if the job holds it; and what was kept to run after it. That goes too where the id
--- was freed by hand, or another holds it by now: `owner` says for whom it was kept (only we write it). Raises BROKEN.
function M.of(base, id, deid)
  local key, next_key = base .. "de:" .. deid, base .. "dn:" .. deid
  if check.text(key) == id then
    return { key, next_key }
  end
  return redis.pcall("HGET", next_key, "owner") == id and { next_key } or {}
end

return M
