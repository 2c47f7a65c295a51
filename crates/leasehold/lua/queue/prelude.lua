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
--   [0, 0, now, 0, entry, end]           unknown; a holder
--   [3, capacity, now]                   asks for more than the capacity

local lock, holders, queue = KEYS[1], KEYS[2], KEYS[3]
local heartbeats, entries, counter = KEYS[4], KEYS[5], KEYS[6]
local call, match, format = redis.call, string.match, string.format
local max, min, NEVER = math.max, math.min, 2 ^ 53
local stored, time = call('GET', lock), call('TIME')
local now = time[1] * 1000000 + time[2]
-- Every call defines all functions below. They take the state as an argument
-- and bind keys themselves: capturing locals would cost as much as five
-- commands. Besides the summary, see lua/README.md, the state has
--   alone                    the only holder of a lock without a queue
--   last_expiry              the latest end that was set
--   new_holders, new_queue   whether these keys may be new, without an expiry
--   stored_used, stored_due  what the summary says
--   is_changed               whether to write the summary even so
local state
if stored then
  local kind, capacity, used, due, expiry, capacity_ttl =
    match(stored, '^lh1:queue:(%a+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  if kind then
    used, due = used + 0, due + 0
    state = {
      now = now, kind = kind, capacity = capacity + 0, used = used, due = due, expiry = expiry,
      capacity_ttl = capacity_ttl + 0, last_expiry = 0, stored_used = used, stored_due = due,
    }
  else
    local name, limit, weight, owner, since = match(stored, '^lh1:(%a+):(%d+):(%d+) (%x+) (%d+) ')
    if not name then
      return redis.error_reply('WRONGTYPE the key holds another kind of lock')
    end
    local ends = call('PEXPIRETIME', lock) * 1000
    ends = ends < 0 and NEVER or ends
    -- The server expires keys up to a millisecond late.
    if ends > now then
      local text = weight .. ' 0 0 ' .. since .. '000 + ' .. stored
      state = {
        now = now, kind = name, capacity = limit + 0, used = weight + 0, due = ends, expiry = 0,
        capacity_ttl = 0, last_expiry = 0, alone = {owner = owner, ends = ends, entry = text},
      }
    end
  end
end
state = state or {now = now, capacity = 0, used = 0, due = NEVER, expiry = 0, capacity_ttl = 0, last_expiry = 0}

-- Whether an argument is an integer from `least`.
local function in_range(number, least)
  return number and number >= least and number % 1 == 0 and number <= 2 ^ 53
end

-- Returns weight, first lease, token, since, channel, value: see lua/README.md.
local function entry(owner)
  local entries = KEYS[5]
  local found = redis.call('HGET', entries, owner)
  if found then
    local weight, first_lease, token, since, at = string.match(found, '^(%d+) (%d+) (%d+) (%d+) ()')
    -- Not by the pattern: Lua matches text character by character.
    local space = string.find(found, ' ', at, true)
    return weight, first_lease, token, since, string.sub(found, at, space - 1), string.sub(found, space + 1)
  end
end

-- All arguments are text, as are the times and tokens that functions return:
-- converting a number costs half as much as a command.
local function write_entry(owner, weight, first_lease, token, since, channel, value)
  local entries = KEYS[5]
  local numbers = weight .. ' ' .. first_lease .. ' ' .. token .. ' ' .. since
  redis.call('HSET', entries, owner, numbers .. ' ' .. channel .. ' ' .. value)
end

-- Sets when a holder's lease or a waiter's heartbeat ends.
local function set_end(state, set, owner, ends)
  local text = string.format('%d', ends)
  redis.call('ZADD', set, text, owner)
  state.due, state.last_expiry = math.min(state.due, ends), math.max(state.last_expiry, ends)
  return text
end

-- Returns the next token, and the time.
local function next_token(now)
  local counter = KEYS[6]
  local clock = string.format('%d', now)
  local before = redis.call('SET', counter, clock, 'GET')
  if not before or tonumber(before) < now then
    return clock, clock
  end
  local token = string.format('%d', before + 1)
  redis.call('SET', counter, token)
  return token, clock
end

-- Turns the string of a lock that is alone or free into a queue. An operator
-- who deletes the lock's key leaves the keys of its queue behind.
local function open_queue(state)
  local alone = state.alone
  local holders, queue, heartbeats, entries = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
  if alone or not state.kind then
    redis.call('DEL', holders, queue, heartbeats, entries)
  end
  if alone then
    -- Not only in `store`: the server may deny the user a command before.
    redis.call('ZADD', holders, string.format('%d', alone.ends), alone.owner)
    redis.call('PEXPIREAT', holders, math.ceil(alone.ends / 1000) + 1000)
    redis.call('HSET', entries, alone.owner, alone.entry)
    redis.call('PEXPIREAT', entries, math.ceil(alone.ends / 1000) + 1000)
    state.last_expiry, state.alone = alone.ends, nil
  end
end

-- Writes the summary and the expiries. Returns a reply, computed before.
local function store(state, reply)
  if state.alone or not state.kind then
    return reply
  end
  local call, format = redis.call, string.format
  local lock, holders, queue, heartbeats, entries = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
  if state.used == 0 and state.capacity_ttl == 0 then
    call('DEL', lock, holders, queue, heartbeats, entries)
    return reply
  end
  -- The keys outlast the last lease by at least a second: until then the
  -- scripts decide what has expired, not the server.
  local need = math.ceil(math.max(state.last_expiry, state.now + state.capacity_ttl) / 1000) + 1000
  local is_late = need > state.expiry + 0
  local expiry = is_late and format('%d', need + 10000) or state.expiry
  if is_late or state.new_holders then
    call('PEXPIREAT', holders, expiry)
    call('PEXPIREAT', entries, expiry)
  end
  if is_late or state.new_queue then
    call('PEXPIREAT', queue, expiry)
    call('PEXPIREAT', heartbeats, expiry)
  end
  if is_late or state.is_changed or state.used ~= state.stored_used or state.due ~= state.stored_due then
    local numbers = format(' %d %d %d %s %d', state.capacity, state.used, state.due, expiry, state.capacity_ttl)
    call('SET', lock, 'lh1:queue:' .. state.kind .. numbers, 'PXAT', expiry)
  end
  return reply
end

-- Returns the token, and when the lease ends.
local function add_holder(state, owner, lease, weight, first_lease, channel, value)
  local holders = KEYS[2]
  local token, clock = next_token(state.now)
  state.used = state.used + weight
  write_entry(owner, weight, first_lease, token, clock, channel, value)
  return token, set_end(state, holders, owner, state.now + lease)
end

local function remove_waiter(owner)
  local queue, heartbeats, entries = KEYS[3], KEYS[4], KEYS[5]
  redis.call('ZREM', queue, owner)
  redis.call('ZREM', heartbeats, owner)
  redis.call('HDEL', entries, owner)
end

-- Grants the lock to the head of the queue while it fits.
local function promote(state)
  local queue, heartbeats = KEYS[3], KEYS[4]
  while state.used < state.capacity do
    local is_free = state.used == 0
    local owner = (is_free and redis.call('ZPOPMIN', queue) or redis.call('ZRANGE', queue, '0', '0'))[1]
    if not owner then
      return
    end
    local weight, first_lease, _, _, channel, value = entry(owner)
    if state.used + weight > state.capacity then
      return
    end
    if not is_free then
      redis.call('ZREM', queue, owner)
    end
    redis.call('ZREM', heartbeats, owner)
    local token, ends = add_holder(state, owner, first_lease, weight, first_lease, channel, value)
    local grant = owner .. ' ' .. token .. ' ' .. ends
    -- An error must not stop the script: a heartbeat also finds the grant.
    if type(redis.pcall('SPUBLISH', channel, grant)) == 'table' then
      redis.pcall('PUBLISH', channel, grant)
    end
  end
end

-- Evicts holders and waiters whose time has ended, and promotes.
local function evict_expired(state)
  if state.due > state.now then
    return
  end
  local call, clock = redis.call, string.format('%d', state.now)
  local holders, heartbeats, entries = KEYS[2], KEYS[4], KEYS[5]
  -- A full server allows what follows only after a write that needs no memory.
  call('HDEL', entries, '')
  for _, owner in ipairs(call('ZRANGEBYSCORE', holders, '-inf', clock)) do
    state.used = state.used - entry(owner)
    call('ZREM', holders, owner)
    call('HDEL', entries, owner)
  end
  for _, owner in ipairs(call('ZRANGEBYSCORE', heartbeats, '-inf', clock)) do
    remove_waiter(owner)
  end
  local next_end = call('ZRANGE', holders, '0', '0', 'WITHSCORES')
  -- Without holders nothing is in use. A server that lost the set would
  -- otherwise block the lock for as long as an owner waits.
  state.used, state.due = next_end[1] and state.used or 0, tonumber(next_end[2] or 2 ^ 53)
  state.new_holders = true
  promote(state)
  state.due = math.min(state.due, tonumber(call('ZRANGE', heartbeats, '0', '0', 'WITHSCORES')[2] or 2 ^ 53))
end

-- Returns the entry of a holder and when its lease ends.
local function any_holder()
  local holders, entries = KEYS[2], KEYS[5]
  local held = redis.call('ZRANGE', holders, '0', '0', 'WITHSCORES')
  return held[1] and redis.call('HGET', entries, held[1]) or '', tonumber(held[2] or 0)
end

local function status(state, owner)
  local now, alone, call = state.now, state.alone, redis.call
  local holders, queue, entries = KEYS[2], KEYS[3], KEYS[5]
  if alone and alone.owner == owner then
    -- A full server allows the rest only after a write without new memory.
    call('HDEL', entries, '')
    return {1, tonumber((next_token(now))), now, alone.ends, 1}
  elseif alone or not state.kind then
    return {0, 0, now, 0, alone and alone.entry or '', alone and alone.ends or 0}
  end
  local weight, first_lease, token, since, channel, value = entry(owner)
  local ticket = since == '0' and call('ZSCORE', queue, owner)
  local ends = weight and not ticket and call('ZSCORE', holders, owner)
  if ticket then
    return {2, call('ZRANK', queue, owner), now, tonumber(ticket), any_holder()}
  elseif not ends then
    return {0, 0, now, 0, any_holder()}
  end
  -- An owner that was alone took its token from the counter.
  if token == '0' then
    token = next_token(now)
    write_entry(owner, weight, first_lease, token, since, channel, value)
  end
  return {1, tonumber(token), now, tonumber(ends), 0}
end

