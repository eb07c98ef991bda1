--- A job that has ended is to run again (protocol 3.14, 3.15).

local M = {}

--- The end that it had goes; the tracebacks of its runs stay.
function M.forget_end(key, from)
  if from == "completed" then
    redis.call("HDEL", key, "finishedOn", "processedOn", "returnvalue", "resultError", "skipped",
      "cancelRequested")
  else
    redis.call("HDEL", key, "finishedOn", "processedOn", "failedReason", "failureKind", "cancelRequested")
  end
end

return M
