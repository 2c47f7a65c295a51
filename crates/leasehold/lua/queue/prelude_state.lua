-- queue/prelude_state (prelude)
--
-- Reads and writes the state of a lock that can have a queue. Precedes every
-- script of this folder except queue/compare_and_delete. Times are
-- microseconds of the server's clock.
--
-- KEYS[1]  lock        string; the only holder, or the summary of a queue
-- KEYS[2]  holders     zset; owner -> when its lease ends
-- KEYS[3]  queue       zset; waiting owner -> its ticket
-- KEYS[4]  heartbeats  zset; waiting owner -> when its heartbeat expires
-- KEYS[5]  entries     hash; owner -> entry, see lua/README.md
-- KEYS[6]  counter     string; the largest token issued so far

local lock, holders, queue = KEYS[1], KEYS[2], KEYS[3]
local heartbeats, entries, counter = KEYS[4], KEYS[5], KEYS[6]
local call, match, max, min = redis.call, string.match, math.max, math.min
-- The keys outlast the last lease by at least GRACE milliseconds: until then
-- the scripts decide what has expired, not the server.
local GRACE, SLACK, NEVER = 1000, 10000, 2 ^ 53

local stored = call('GET', lock)
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
-- No lease or heartbeat ends before `due`. All keys expire at `expiry`, in
-- milliseconds; 0 without a queue.
local kind, capacity, used, due, expiry, capacity_ttl = nil, 0, 0, NEVER, 0, 0
-- The only holder: owner, ends, entry. `plain` while the lock's key holds its
-- value and there is no queue.
local sole, plain
-- Whether the summary must be written, which keys may be new and without an
-- expiry, and the latest end that was set.
local changed, fresh, last_expiry = false, {}, 0

if stored then
  local ends, rest, owner
  kind, capacity, used, due, expiry, capacity_ttl, ends, rest =
    match(stored, '^lh1:queue:(%a+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  if kind then
    capacity, used, due = capacity + 0, used + 0, due + 0
    expiry, capacity_ttl = expiry + 0, capacity_ttl + 0
    sole = ends ~= '0' and {owner = match(rest, ' lh1%S+ (%x+) '), ends = ends + 0, entry = rest} or nil
  else
    local weight, since
    kind, capacity, weight, owner, since = match(stored, '^lh1:(%a+):(%d+):(%d+) (%x+) (%d+) ')
    if not kind then
      return redis.error_reply('WRONGTYPE the key holds another kind of lock')
    end
    ends = call('PEXPIRETIME', lock) * 1000
    ends = ends < 0 and NEVER or ends
    sole = {owner = owner, ends = ends, entry = weight .. ' 0 0 ' .. since .. '000 + ' .. stored}
    plain, capacity, used, due, expiry, capacity_ttl = true, capacity + 0, weight + 0, ends, 0, 0
    if ends <= now then
      kind, sole, plain, capacity, used, due = nil, nil, nil, 0, 0, NEVER
    end
  end
end

-- All digits, as text: Lua's own conversion of a number costs more than the
-- command that takes it.
local function digits(number)
  return string.format('%d', number)
end

-- Whether all arguments are integers from 1.
local function in_range(...)
  for _, number in ipairs({...}) do
    if number < 1 or number % 1 ~= 0 or number > NEVER then
      return false
    end
  end
  return true
end

-- Returns weight, first lease, token, since (0 while waiting), channel ('-'
-- after a release) and value: see lua/README.md.
local function entry(owner)
  local found = sole and sole.owner == owner and sole.entry or not plain and call('HGET', entries, owner)
  return match(found or '', '^(%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
end

local function write_entry(owner, weight, ...)
  local written = table.concat({digits(weight), ...}, ' ')
  if sole and sole.owner == owner then
    sole.entry, changed = written, true
  else
    call('HSET', entries, owner, written)
  end
end

-- Sets when a holder's lease ends.
local function set_end(owner, ends)
  if sole and sole.owner == owner then
    sole.ends = ends
  else
    call('ZADD', holders, digits(ends), owner)
  end
  due, last_expiry, changed = min(due, ends), max(last_expiry, ends), true
end

local function next_token()
  local before = tonumber(call('SET', counter, digits(now), 'GET') or 0)
  if before < now then
    return now
  end
  call('SET', counter, digits(before + 1))
  return before + 1
end

-- Turns a plain string into a queue. Deletes keys of an earlier queue that an
-- evicting server may have left.
local function open_queue()
  if plain or not kind then
    call('DEL', holders, queue, heartbeats, entries)
    last_expiry, changed, plain = plain and sole.ends or 0, true, nil
  end
end

-- Writes the summary and the expiries.
local function store()
  if plain or not kind then
    return
  end
  if used == 0 and capacity_ttl == 0 then
    call('DEL', lock, holders, queue, heartbeats, entries)
    return
  end
  local need = math.ceil(max(last_expiry, now + capacity_ttl) / 1000) + GRACE
  if need > expiry then
    expiry, changed = need + SLACK, true
    fresh = {[holders] = true, [queue] = true, [heartbeats] = true, [entries] = true}
  end
  for key in pairs(fresh) do
    call('PEXPIREAT', key, digits(expiry))
  end
  if changed then
    local numbers = {digits(capacity), digits(used), digits(due), digits(expiry), digits(capacity_ttl)}
    local holder = sole and digits(sole.ends) .. ' ' .. sole.entry or '0 '
    call('SET', lock, 'lh1:queue:' .. kind .. ' ' .. table.concat(numbers, ' ') .. ' ' .. holder, 'PXAT', numbers[4])
  end
end

-- Writes the state, and returns a reply that was computed before.
local function store_and(reply)
  store()
  return reply
end

