-- queue/state (prelude)
--
-- Reads and writes the state of a lock that has a queue. It stands before the text of each script of this folder, and
-- queue/steps behind it. Moments are microseconds by the server's clock.
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
-- The only holder, where the lock is one plain string.
local alone
-- Whether the summary must be written, which keys may be new and without an expiry, and the latest end that was set.
local changed, fresh, last = false, {}, 0

if value then
  local numbers
  kind, numbers = match(value, '^lh1:queue:(%a+) (.*)$')
  if kind then
    capacity, used, due, expiry, kept = match(numbers, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
    capacity, used, due, expiry, kept = capacity + 0, used + 0, due + 0, expiry + 0, kept + 0
  else
    local weight, owner, since
    kind, capacity, weight, owner, since = match(value, '^lh1:(%a+):(%d+):(%d+) (%x+) (%d+) ')
    if not kind then
      return redis.error_reply('WRONGTYPE the key holds another kind of lock')
    end
    local ends = call('PEXPIRETIME', lock) * 1000
    if ends < 0 or ends > now then
      capacity, alone = capacity + 0, {owner = owner, weight = weight + 0, ends = ends < 0 and NEVER or ends}
      alone.entry = weight .. ' 0 0 ' .. since .. '000 + ' .. value
    else
      value, kind, capacity = false, nil, 0
    end
  end
end

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
  return match(call('HGET', entries, owner) or '', '^(%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
end

local function enrol(owner, weight, ...)
  call('HSET', entries, owner, table.concat({digits(weight), ...}, ' '))
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
  if alone then
    call('DEL', holders, queue, heartbeats, entries)
    call('ZADD', holders, alone.ends, alone.owner)
    call('HSET', entries, alone.owner, alone.entry)
    used, due, last, changed, alone = alone.weight, alone.ends, alone.ends, true, nil
  end
end

-- Writes what must outlast the script.
local function store()
  if alone or not kind then
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
    call('PEXPIREAT', key, expiry)
  end
  if changed then
    local numbers = {digits(capacity), digits(used), digits(due), digits(expiry), digits(kept)}
    call('SET', lock, 'lh1:queue:' .. kind .. ' ' .. table.concat(numbers, ' '), 'PXAT', expiry)
  end
end
