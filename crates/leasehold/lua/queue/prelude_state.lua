-- queue/prelude_state (prelude)
--
-- Reads and writes the state of a lock that has a queue. It stands before the text of each script of this folder, and
-- queue/prelude_steps behind it. Moments are microseconds by the server's clock.
--
-- KEYS[1]  lock        string; one holder, or the summary of a queue: see lua/README.md
-- KEYS[2]  holders     zset; owner -> when its lease ends
-- KEYS[3]  queue       zset; waiting owner -> its ticket
-- KEYS[4]  heartbeats  zset; waiting owner -> when it counts as dead
-- KEYS[5]  entries     hash; owner -> entry, see lua/README.md
-- KEYS[6]  counter     string; the largest token so far

local lock, holders, queue, heartbeats, entries, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local call, match, max, min = redis.call, string.match, math.max, math.min
-- The keys outlast the last lease by a second at least: until then the scripts decide and not the server.
local GRACE, SLACK, NEVER = 1000, 10000, 2 ^ 53

local value = call('GET', lock)
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
-- No lease and no heartbeat ends before `due`. The keys expire at `expiry`, in milliseconds; 0 without a queue.
local kind, capacity, used, due, expiry, kept = nil, 0, 0, NEVER, 0, 0
-- The only holder: owner, ends, entry. It is `plain` while the lock is its value and has no queue.
local sole, plain
-- Whether the summary must be written, which keys may be new and without an expiry, and the latest end that was set.
local changed, fresh, last = false, {}, 0

if value then
  local ends, shown, owner
  kind, capacity, used, due, expiry, kept, ends, shown =
    match(value, '^lh1:queue:(%a+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  if kind then
    capacity, used, due, expiry, kept = capacity + 0, used + 0, due + 0, expiry + 0, kept + 0
    sole = ends ~= '0' and {owner = match(shown, ' lh1%S+ (%x+) '), ends = ends + 0, entry = shown} or nil
  else
    local weight, since
    kind, capacity, weight, owner, since = match(value, '^lh1:(%a+):(%d+):(%d+) (%x+) (%d+) ')
    if not kind then
      return redis.error_reply('WRONGTYPE the key holds another kind of lock')
    end
    ends = call('PEXPIRETIME', lock) * 1000
    ends = ends < 0 and NEVER or ends
    sole = {owner = owner, ends = ends, entry = weight .. ' 0 0 ' .. since .. '000 + ' .. value}
    plain, capacity, used, due, expiry, kept = true, capacity + 0, weight + 0, ends, 0, 0
    if ends <= now then
      kind, sole, plain, capacity, used, due = nil, nil, nil, 0, 0, NEVER
    end
  end
end

-- In full, and as text: a number that Lua hands to a command costs more than the command.
local function digits(number)
  return string.format('%d', number)
end

-- Whether all are integers from 1.
local function in_range(...)
  for _, number in ipairs({...}) do
    if number < 1 or number % 1 ~= 0 or number > NEVER then
      return false
    end
  end
  return true
end

-- weight, first lease, token, since or 0 while it waits, channel or '-' after a release, mark: see lua/README.md
local function entry(owner)
  local found = sole and sole.owner == owner and sole.entry or not plain and call('HGET', entries, owner)
  return match(found or '', '^(%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
end

local function enrol(owner, weight, ...)
  local written = table.concat({digits(weight), ...}, ' ')
  if sole and sole.owner == owner then
    sole.entry, changed = written, true
  else
    call('HSET', entries, owner, written)
  end
end

-- Sets when the lease of a holder ends.
local function set_end(owner, ends)
  if sole and sole.owner == owner then
    sole.ends = ends
  else
    call('ZADD', holders, digits(ends), owner)
  end
  due, last, changed = min(due, ends), max(last, ends), true
end

local function next_token()
  local before = tonumber(call('SET', counter, digits(now), 'GET') or 0)
  if before < now then
    return now
  end
  call('SET', counter, digits(before + 1))
  return before + 1
end

-- Makes a queue of a plain string. What an evicting server has left of an older queue must not deceive.
local function open_queue()
  if plain or not kind then
    call('DEL', holders, queue, heartbeats, entries)
    last, changed, plain = plain and sole.ends or 0, true, nil
  end
end

-- Writes what must outlast the script.
local function store()
  if plain or not kind then
    return
  end
  if used == 0 and kept == 0 then
    call('DEL', lock, holders, queue, heartbeats, entries)
    return
  end
  local need = math.ceil(max(last, now + kept) / 1000) + GRACE
  if need > expiry then
    expiry, changed = need + SLACK, true
    fresh = {[holders] = true, [queue] = true, [heartbeats] = true, [entries] = true}
  end
  for key in pairs(fresh) do
    call('PEXPIREAT', key, digits(expiry))
  end
  if changed then
    local numbers = {digits(capacity), digits(used), digits(due), digits(expiry), digits(kept)}
    local holder = sole and digits(sole.ends) .. ' ' .. sole.entry or '0 '
    call('SET', lock, 'lh1:queue:' .. kind .. ' ' .. table.concat(numbers, ' ') .. ' ' .. holder, 'PXAT', numbers[4])
  end
end

-- Gives a reply that may have changed the state.
local function stored(reply)
  store()
  return reply
end
