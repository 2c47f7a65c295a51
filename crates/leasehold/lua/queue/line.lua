-- queue/line (prelude)
--
-- What the scripts of this folder share: it stands before the text of each. All times are
-- microseconds, moments are by the server's clock.
--
-- KEYS[1]  lock     hash; see lua/README.md
-- KEYS[2]  holders  zset; owner -> when its lease ends
-- KEYS[3]  line     zset; waiting owner -> its ticket
-- KEYS[4]  alive    zset; waiting owner -> when it is given up unless it is heard of
-- KEYS[5]  counter  string; the largest token given out so far
--
-- Standing: how an owner stands, the answer of most scripts
--   [1, token, now, end]                 it holds
--   [2, ahead, now, ticket, entry, end]  it waits, with so many ahead; first holder and its end
--   [0, waiting, now, 0, entry, end]     it is not known; so many wait; first holder and its end
--   [3, capacity, now]                   it asks for more than there is at all

local lock, holders, line, alive, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

local state = redis.call('HMGET', lock, 'used', 'last', 'token', 'capacity', 'kept', 'kind', 'ticket')
-- How much is taken, when the last lease or place ends, and the token given last.
local used, last, token = tonumber(state[1] or 0), tonumber(state[2] or 0), tonumber(state[3] or 0)
local capacity, kept, kind = tonumber(state[4] or 0), tonumber(state[5] or 0), state[6]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
-- Whether anybody waits; known after settle().
local queued = false

-- A moment or token in full digits, which Lua's own conversion cuts off; '%.0f' costs more than a command.
local function digits(number)
  return string.format('%d%06d', math.floor(number / 1000000), number % 1000000)
end

-- weight, shared, first lease, token, since, channel or '-' after a release, record: see lua/README.md
local function entry(owner)
  local value = redis.call('HGET', lock, owner) or '0 0 0 0 0 - '
  return string.match(value, '^(%d+) (%d) (%d+) (%d+) (%d+) (%S+) (.*)$')
end

local function enrol(owner, ...)
  redis.call('HSET', lock, owner, table.concat({...}, ' '))
end

-- Makes an owner a holder; when its lease ends. Those who share come in under the token of those inside.
local function admit(owner, lease, weight, shared, first, channel, record)
  if shared == '0' or used == 0 then
    local before = tonumber(redis.call('SET', counter, digits(now), 'GET') or 0)
    token = math.max(before + 1, now)
    if token > now then
      redis.call('SET', counter, digits(token))
    end
  end
  used, last = used + weight, math.max(last, now + lease)
  redis.call('ZADD', holders, now + lease, owner)
  enrol(owner, weight, shared, first, digits(token), digits(now), channel, record)
  return now + lease
end

-- Takes an owner out, whether it holds or waits.
local function leave(owner)
  if redis.call('ZREM', holders, owner) == 1 then
    used = used - entry(owner)
  else
    redis.call('ZREM', line, owner)
    redis.call('ZREM', alive, owner)
  end
  redis.call('HDEL', lock, owner)
end

-- Whether there is room; a server that evicts keys may have lost the holders and not the sum.
local function fits(weight)
  if used + weight > capacity and redis.call('EXISTS', holders) == 0 then
    used = 0
  end
  return used + weight <= capacity
end

-- Gives the lock to those at the head of the line, as long as they fit, and tells each of them. One
-- that can never fit is sent away; it learns so when it is next heard of.
local function promote()
  local owner = redis.call('ZRANGE', line, 0, 0)[1]
  while owner do
    local weight, shared, first, _, _, channel, record = entry(owner)
    if tonumber(weight) > capacity then
      leave(owner)
    elseif not fits(weight) then
      return
    else
      redis.call('ZREM', line, owner)
      redis.call('ZREM', alive, owner)
      local ends = admit(owner, first, weight, shared, first, channel, record)
      -- One that may not be told finds out by its next heartbeat; the script must not stop halfway.
      redis.pcall('SPUBLISH', channel, owner .. ' ' .. digits(token) .. ' ' .. digits(ends))
    end
    owner = redis.call('ZRANGE', line, 0, 0)[1]
  end
  queued = false
end

local function take_out_ended(set)
  for _, owner in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', now)) do
    leave(owner)
  end
end

-- Takes out holders whose lease has ended and waiters not heard of, and promotes.
local function settle()
  if not state[1] then
    -- What an evicting server has left of a lock that is lost must not deceive.
    if redis.call('EXISTS', holders, line, alive) > 0 then
      redis.call('DEL', holders, line, alive)
    end
    return
  end
  take_out_ended(holders)
  queued = redis.call('EXISTS', line) == 1
  if queued then
    take_out_ended(alive)
    promote()
  end
end

-- Writes what must outlast the script. All keys expire a second after nobody is left: until then it is
-- the scripts and not the server that decide who is.
local function store()
  if used == 0 and not queued and kept == 0 then
    redis.call('DEL', lock, holders, line, alive)
    return
  end
  redis.call('HSET', lock, 'used', used, 'last', digits(last), 'token', digits(token),
    'kind', kind or '', 'capacity', capacity)
  local expiry = math.ceil(math.max(last, now + kept) / 1000) + 1000
  redis.call('PEXPIREAT', lock, expiry)
  redis.call('PEXPIREAT', holders, expiry)
  if queued then
    redis.call('PEXPIREAT', line, expiry)
    redis.call('PEXPIREAT', alive, expiry)
  end
end

local function standing(owner)
  local ends = redis.call('ZSCORE', holders, owner)
  if ends then
    local _, _, _, its_token = entry(owner)
    return {1, tonumber(its_token), now, tonumber(ends)}
  end
  local first = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')
  local shown = first[1] and redis.call('HGET', lock, first[1]) or ''
  local ahead = redis.call('ZRANK', line, owner)
  if ahead then
    local ticket = redis.call('ZSCORE', line, owner)
    return {2, ahead, now, tonumber(ticket), shown, tonumber(first[2] or 0)}
  end
  return {0, redis.call('ZCARD', line), now, 0, shown, tonumber(first[2] or 0)}
end
