-- queue/prelude (prelude)
--
-- Reads, changes and writes the state of a lock that can have a queue. Precedes
-- every script of this folder except queue/compare_and_delete. Times are
-- microseconds of the server's clock.
--
-- KEYS[1]  lock        string; the holder that is alone, or a queue's summary
-- KEYS[2]  holders     zset; owner -> when its lease ends
-- KEYS[3]  queue       zset; waiting owner -> its ticket
-- KEYS[4]  heartbeats  zset; waiting owner -> when its heartbeat expires
-- KEYS[5]  entries     hash; owner -> entry, see lua/README.md
-- KEYS[6]  counter     string; the largest token issued so far
--
-- The status of an owner is the reply of most scripts:
--   [1, token, now, end, alone]          holds; alone is 1 without a queue
--   [2, ahead, now, ticket, entry, end]  waits behind `ahead` owners; a holder
--   [0, waiters, now, 0, entry, end]     unknown; the waiters; a holder
--   [3, capacity, now]                   asks for more than the capacity

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
-- The holder while it is alone, without a queue: owner, ends, entry.
local alone
-- Whether the summary must be written, which keys may be new and without an
-- expiry, and the latest end that was set.
local changed, fresh, last_expiry = false, {}, 0

if stored then
  kind, capacity, used, due, expiry, capacity_ttl =
    match(stored, '^lh1:queue:(%a+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  if kind then
    capacity, used, due = capacity + 0, used + 0, due + 0
    expiry, capacity_ttl = expiry + 0, capacity_ttl + 0
  else
    local weight, owner, since
    kind, capacity, weight, owner, since = match(stored, '^lh1:(%a+):(%d+):(%d+) (%x+) (%d+) ')
    if not kind then
      return redis.error_reply('WRONGTYPE the key holds another kind of lock')
    end
    capacity, used, due, expiry, capacity_ttl = capacity + 0, weight + 0, NEVER, 0, 0
    local ends = call('PEXPIRETIME', lock) * 1000
    if ends < 0 or ends > now then
      due = ends < 0 and NEVER or ends
      alone = {owner = owner, ends = due, entry = weight .. ' 0 0 ' .. since .. '000 + ' .. stored}
    else
      -- The server expires keys up to a millisecond late.
      kind, capacity, used = nil, 0, 0
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
  local found
  if alone then
    found = alone.owner == owner and alone.entry
  else
    found = call('HGET', entries, owner)
  end
  return match(found or '', '^(%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
end

local function write_entry(owner, weight, ...)
  call('HSET', entries, owner, table.concat({digits(weight), ...}, ' '))
end

-- Sets when a holder's lease ends.
local function set_end(owner, ends)
  call('ZADD', holders, digits(ends), owner)
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

-- Turns the string of a lock that is alone or free into a queue. An operator
-- who deletes the lock's key leaves the keys of its queue behind.
local function open_queue()
  if alone or not kind then
    call('DEL', holders, queue, heartbeats, entries)
    changed = true
  end
  if alone then
    call('ZADD', holders, digits(alone.ends), alone.owner)
    call('HSET', entries, alone.owner, alone.entry)
    last_expiry, alone = alone.ends, nil
  end
end

-- Writes the summary and the expiries.
local function store()
  if alone or not kind then
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
    call('SET', lock, 'lh1:queue:' .. kind .. ' ' .. table.concat(numbers, ' '), 'PXAT', numbers[4])
  end
end

-- Writes the state, and returns a reply that was computed before.
local function store_and(reply)
  store()
  return reply
end

local function add_holder(owner, lease, weight, first_lease, channel, value)
  local token, ends = next_token(), now + lease
  used = used + weight
  set_end(owner, ends)
  write_entry(owner, weight, first_lease, digits(token), digits(now), channel, value)
  return token, ends
end

local function enqueue(owner, ticket, ends, weight, first_lease, channel, value)
  call('ZADD', queue, digits(ticket), owner)
  call('ZADD', heartbeats, digits(ends), owner)
  write_entry(owner, weight, first_lease, 0, 0, channel, value)
  due, last_expiry, changed = min(due, ends), max(last_expiry, ends), changed or ends < due
end

local function remove_waiter(owner)
  call('ZREM', queue, owner)
  call('ZREM', heartbeats, owner)
  call('HDEL', entries, owner)
end

-- Grants the lock to the head of the queue while it fits.
local function promote()
  while used < capacity do
    local is_free = used == 0
    local owner = (is_free and call('ZPOPMIN', queue) or call('ZRANGE', queue, '0', '0'))[1]
    if not owner then
      return
    end
    local weight, first_lease, _, _, channel, value = entry(owner)
    if used + weight > capacity then
      return
    end
    if not is_free then
      call('ZREM', queue, owner)
    end
    call('ZREM', heartbeats, owner)
    local token, ends = add_holder(owner, first_lease, weight, first_lease, channel, value)
    -- A refused publish must not stop the script halfway: the waiter then
    -- learns of its grant by its next heartbeat.
    redis.pcall('SPUBLISH', channel, owner .. ' ' .. digits(token) .. ' ' .. digits(ends))
  end
end

-- Evicts holders whose lease has ended and waiters that missed their
-- heartbeats, and promotes.
local function evict_expired()
  if due > now then
    return
  end
  -- A full server allows what follows only after a write that needs no memory.
  call('HDEL', entries, '')
  for _, owner in ipairs(call('ZRANGEBYSCORE', holders, '-inf', digits(now))) do
    used, fresh[holders] = used - entry(owner), true
    call('ZREM', holders, owner)
    call('HDEL', entries, owner)
  end
  for _, owner in ipairs(call('ZRANGEBYSCORE', heartbeats, '-inf', digits(now))) do
    remove_waiter(owner)
  end
  local next_end = call('ZRANGE', holders, '0', '0', 'WITHSCORES')
  -- Without holders nothing is in use. A server that lost the set would
  -- otherwise block the lock for as long as an owner waits.
  used, due, changed = next_end[1] and used or 0, tonumber(next_end[2] or NEVER), true
  promote()
  due = min(due, tonumber(call('ZRANGE', heartbeats, '0', '0', 'WITHSCORES')[2] or NEVER))
end

-- Returns the entry of a holder and when its lease ends.
local function any_holder()
  local held = call('ZRANGE', holders, '0', '0', 'WITHSCORES')
  return held[1] and call('HGET', entries, held[1]) or '', tonumber(held[2] or 0)
end

-- Returns the status of an owner that waits. A heartbeat's ticket is 0.
local function waiting_status(owner, ticket)
  local holder, ends = any_holder()
  return {2, call('ZRANK', queue, owner), now, ticket, holder, ends}
end

local function status(owner)
  if alone and alone.owner == owner then
    -- A full server allows the rest only after a write without new memory.
    call('HDEL', entries, '')
    return {1, next_token(), now, alone.ends, 1}
  elseif alone or not kind then
    return {0, 0, now, 0, alone and alone.entry or '', alone and alone.ends or 0}
  end
  local ends = call('ZSCORE', holders, owner)
  if ends then
    local weight, first_lease, token, since, channel, value = entry(owner)
    -- An owner that was alone took its token from the counter.
    if token == '0' then
      token = digits(next_token())
      write_entry(owner, weight, first_lease, token, since, channel, value)
    end
    return {1, tonumber(token), now, tonumber(ends), 0}
  end
  local ticket = call('ZSCORE', queue, owner)
  if ticket then
    return waiting_status(owner, tonumber(ticket))
  end
  local holder, holder_ends = any_holder()
  return {0, call('ZCARD', queue), now, 0, holder, holder_ends}
end

