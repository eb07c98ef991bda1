--- Makes a schedule, or changes it, with its next iteration (protocol 3.24, "Upsert"); or resumes a paused one. Asked again, it changes
--- nothing: the slot of the iteration that waits stays, its id and its place too.
--- @key wait
--- @key active
--- @key prioritized
--- @key delayed
--- @key paused
--- @key completed
--- @key failed
--- @key waiting_children
--- @key schedulers
--- @key id
--- @key pc
--- @key meta
--- @key marker
--- @key events
--- @key calls
--- @key paused_schedulers
--- @arg scheduler_id
--- @arg next_ms
--- @arg after_ms
--- @arg immediately
--- @arg back
--- @arg priority number
--- @arg repeating
--- @arg record
--- @rest
--- @use clock check queue_meta place paused_list schedule
--- @lane
--- @returns now; 1 it goes on | 0 it has no further iteration | 2 call again, with the pattern's successor of the slot given (or, for an interval, from that slot on) | 3 it is paused, and stays so | 4 it would have none at all: nothing was changed | 5 it is not paused as it was read: nothing was changed; the slot of the next iteration; its count; the offset

-- next_ms: a cron pattern's successor of after_ms, which the client works out; for an interval "", or the slot to look from.
-- after_ms: "" for an interval. immediately: "1" if a new pattern starts now. back: as for advanceScheduler.
-- repeating: opts.repeat of its iterations without the count, as JSON.
-- record: the paused schedule's record that is to be resumed; "" for an upsert.
-- rest: the fields of its hash, flat, without ic, and offset only if the caller chose it.
local q = {
  base = base, wait = wait, active = active, prioritized = prioritized, delayed = delayed, paused = paused,
  completed = completed, failed = failed, waiting_children = waiting_children, events = events, pc = pc, id = id,
  marker = marker,
}
local fields, flat = {}, {}
for index = rest, #ARGV, 2 do
  fields[ARGV[index]] = ARGV[index + 1]
  if ARGV[index] ~= "offset" then
    flat[#flat + 1] = ARGV[index]
    flat[#flat + 1] = ARGV[index + 1]
  end
end
local settings = queue_meta.read(meta)
schedule.check(q, settings)
local scheduler = base .. "repeat:" .. scheduler_id
local known = check.fields(scheduler, "every", "pattern", "tz", "offset", "ic", "startDate")
local previous = schedule.slot(schedulers, scheduler_id)
local shelved = check.read("hash", "HGET", paused_schedulers, scheduler_id)
local now, now_text = clock.read(clock_given)

local function answer(code, slot, count, offset)
  return calls_kept.keep(calls, lane, number, now, now_text, {
    now_text, code, slot and place.whole(slot) or "", count and place.whole(count) or "", offset or "",
  })
end

local function same_rhythm(before, chosen_offset)
  return before.every == fields.every and before.pattern == fields.pattern and before.tz == fields.tz
    and (not chosen_offset or before.offset == chosen_offset)
end

-- What there is already: a schedule that goes on, or a paused one. Of a repeatable job of BullMQ 5 there is no `ic`.
local goes_on = previous and known[5] and true or false
local before, made, begun   -- made: how many iterations it has had
if goes_on then
  before = {
    every = known[1] or nil, pattern = known[2] or nil, tz = known[3] or nil, offset = known[4] or nil,
    startDate = known[6] or nil,
  }
  made = schedule.number(known[5])
  if not made then
    error("BROKEN " .. scheduler .. " has an ic that is no whole number", 0)
  end
elseif shelved then
  local readable, found = pcall(cjson.decode, shelved)
  local sound = readable and type(found) == "table" and type(found.fields) == "table"
  for _, text in pairs(sound and found.fields or {}) do
    sound = sound and type(text) == "string"
  end
  if not sound then
    error("BROKEN " .. paused_schedulers .. " has a record of " .. scheduler_id .. " that is none of ours", 0)
  end
  before, begun = found.fields, found.begun == true
  made = schedule.number(before.ic) or 1
  previous = schedule.number(found.slot)
else
  previous = nil
end
if record ~= "" and (goes_on or shelved ~= record) then
  return answer(5)
end

-- What a hand wrote into a schedule comes back with its resumption.
local function unreadable(name)
  error("BROKEN " .. (record ~= "" and paused_schedulers .. " has a record of " .. scheduler_id or scheduler) .. " with "
    .. name .. " '" .. (fields[name] or "") .. "', which cannot be read; upsert it anew", 0)
end
for _, name in ipairs({ "every", "offset", "startDate", "endDate", "limit", "spread" }) do
  local text = fields[name]
  if text and not schedule.number(text) and (tonumber(text) or name == "every" or name == "offset") then
    unreadable(name)
  end
end
local start, latest, limit = tonumber(fields.startDate), tonumber(fields.endDate), tonumber(fields.limit)
local step = fields.every and schedule.number(fields.every)
if not fields.pattern and not step or step and (step < 1 or step > schedule.LATEST) then
  unreadable("every")
end
-- A start that is still to come, and is another than before, begins anew too.
local awaited = before and tonumber(before.startDate or "")
local restarted = before and previous and record == "" and before.startDate ~= fields.startDate
  and ((awaited and awaited > now) or (start and start > now and previous < start)) or false
local same = before and previous and (record ~= "" or same_rhythm(before, fields.offset)) and not restarted or false

if shelved and not goes_on and record == "" then
  -- Who paused it did not ask for it to go on: the definition changes, and nothing else.
  fields.ic, fields.offset = before.ic, fields.offset or (same and before.offset or nil)
  redis.call("HSET", paused_schedulers, scheduler_id,
    cjson.encode({ fields = fields, slot = same and place.whole(previous) or nil, begun = begun }))
  return answer(3, nil, made, fields.offset)
end

-- Its current iteration, if that waits and nobody has started it, is replaced. One that was started is a run of its own.
local at, started, current_id
if goes_on then
  current_id = schedule.iteration_id(scheduler_id, previous)
  at, started = schedule.look(q, current_id)
end
local replaced = at and schedule.QUEUED[at] and not started or false
local count = made and (replaced or not (goes_on or begun)) and made or (made or 0) + 1

local slot
local at_once = false   -- whether it is the first of a rhythm that begins now
if goes_on and same and replaced then
  slot = previous
elseif fields.pattern then
  slot = tonumber(next_ms)
  if not same and immediately == "1" then
    slot, at_once = now, true
  elseif goes_on and same and (slot <= previous
    or (back ~= "" and tonumber(after_ms) > math.max(previous, now - tonumber(back), (start or 0) - 1))) then
    return answer(2, previous)   -- the slot after the one that runs now; and missed ones are caught up with from there
  elseif record ~= "" and same and previous > now then
    slot = previous
  end
elseif next_ms ~= "" then
  slot = tonumber(next_ms)
elseif same then
  slot = record ~= "" and previous > now and previous
    or schedule.after(previous, step, record ~= "" and now or now - (tonumber(back) or 0))
elseif start and start > now then
  slot = start
elseif fields.offset and not start then
  slot = math.floor(now / step) * step + tonumber(fields.offset)
  if slot <= now then
    slot = slot + step
  end
else
  slot, at_once = now, true
end

local free, last, queued, queued_started, taken = schedule.find(q, scheduler_id, slot, step)
local ended = (limit and count > limit) or (latest and (free or last) > latest) or false
if not ended and (free or last) > schedule.LATEST then
  unreadable(fields.startDate and "startDate" or "every")
end
if not ended and not free then
  return answer(2, last)
end
if ended and not before then
  return answer(4)
end
-- A job that has this id already is the one that is replaced, or another that waits: of a schedule that was removed.
local adopted = not ended and queued and queued_started
local taken_out = {}
if replaced then
  taken_out[current_id] = { at = at, deid = schedule.look_unique(q, current_id) }
end
local next_id = not ended and schedule.iteration_id(scheduler_id, free)
if queued and not ended and not adopted and not taken_out[next_id] then
  taken_out[next_id] = { at = queued, deid = schedule.look_unique(q, next_id) }
end
-- What is to run at once, or was due already, is not put off by its share of a spread.
local was = next_id and taken_out[next_id] and taken_out[next_id].at
local due = was and was ~= "delayed" and free <= now or at_once and free == slot
local in_line = was == "waiting" and priority == 0 and free <= now
local offset = fields.offset
if not offset then
  offset = fields.pattern and "0" or place.whole((ended and (previous or 0) or free) % step)
end
local options = schedule.options(scheduler_id, fields.opts or "{}", repeating, count)

redis.call("INCR", id)   -- first, so that a full memory refuses the rest
queue_meta.write_default(meta, settings)
if settings.paused then
  paused_list.take_over(paused, wait)
end
schedule.say_taken(q, settings, ended and {} or taken)
for job_id, out in pairs(taken_out) do
  schedule.take_out(q, job_id, out.at, out.deid, in_line and job_id == next_id)
end
redis.call("DEL", scheduler)
redis.call("HSET", scheduler, "ic", place.whole(ended and made or count), "offset", offset, unpack(flat))
redis.call("HDEL", paused_schedulers, scheduler_id)
if ended then
  redis.call("ZADD", schedulers, place.whole(previous or now), scheduler_id)
  return answer(0, nil, made, offset)
end
redis.call("ZADD", schedulers, place.whole(free), scheduler_id)
if not adopted then
  schedule.make(q, settings, {
    id = scheduler_id, slot = free, name = fields.name or scheduler_id, data = fields.data or "{}",
    options = options, priority = priority,
    spread = not due and tonumber(fields.spread) or nil, latest = latest, pattern = fields.pattern and true or false, in_line = in_line,
  }, now, now_text)
end
return answer(1, free, count, offset)
