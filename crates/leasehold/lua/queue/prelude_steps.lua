-- queue/prelude_steps (prelude)
--
-- Changes the state that queue/prelude_state has read. Follows it in every
-- script that writes.
--
-- The status of an owner is the reply of most scripts:
--   [1, token, now, end, plain]          holds; plain is 1 without a queue
--   [2, ahead, now, ticket, entry, end]  waits behind `ahead` owners; a holder
--   [0, waiters, now, 0, entry, end]     unknown; the waiters; a holder
--   [3, capacity, now]                   asks for more than the capacity

-- Makes an owner a holder. The sets list holders only when there are several;
-- a second one adds the first to them.
local function add_holder(owner, lease, weight, first_lease, channel, value)
  local token, ends = next_token(), now + lease
  if used == 0 then
    sole = {owner = owner}
  elseif sole then
    local before = sole
    sole, fresh[holders], fresh[entries] = nil, true, true
    call('ZADD', holders, digits(before.ends), before.owner)
    call('HSET', entries, before.owner, before.entry)
  end
  used, changed = used + weight, true
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
    if not weight then
      -- An evicting server has lost the entries.
      remove_waiter(owner)
    elseif used + weight > capacity then
      return
    else
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
end

-- Evicts holders whose lease has ended and waiters that missed their
-- heartbeats, and promotes. A `due` of 0 means that an evicting server has
-- lost entries; the weights are then counted again.
local function evict_expired()
  if due > now then
    return
  end
  -- A full server allows what follows only after a write that needs no memory.
  call('HDEL', entries, '')
  local ended = sole and {sole.ends <= now and sole.owner} or call('ZRANGEBYSCORE', holders, '-inf', digits(now))
  for _, owner in ipairs(ended[1] and ended or {}) do
    used, fresh[holders] = used - (entry(owner) or 0), true
    sole = nil
    call('ZREM', holders, owner)
    call('HDEL', entries, owner)
  end
  for _, owner in ipairs(call('ZRANGEBYSCORE', heartbeats, '-inf', digits(now))) do
    remove_waiter(owner)
  end
  if due == 0 and not sole then
    used = 0
    for _, owner in ipairs(call('ZRANGE', holders, '0', '-1')) do
      used = used + (entry(owner) or 0)
    end
  end
  local next_end = sole and {sole.owner, sole.ends} or call('ZRANGE', holders, '0', '0', 'WITHSCORES')
  used, due, changed = next_end[1] and used or 0, tonumber(next_end[2] or NEVER), true
  promote()
  due = min(due, tonumber(call('ZRANGE', heartbeats, '0', '0', 'WITHSCORES')[2] or NEVER))
end

-- Returns the entry of a holder and when its lease ends.
local function any_holder()
  if sole then
    return sole.entry, sole.ends
  end
  local held = call('ZRANGE', holders, '0', '0', 'WITHSCORES')
  return held[1] and call('HGET', entries, held[1]) or '', tonumber(held[2] or 0)
end

-- Returns the status of an owner that has a heartbeat; nil if an evicting
-- server has lost its queue entry. A heartbeat's ticket is 0.
local function waiting_status(owner, ticket)
  local ahead = call('ZRANK', queue, owner)
  if not ahead then
    return remove_waiter(owner)
  end
  local holder, ends = any_holder()
  return {2, ahead, now, ticket, holder, ends}
end

local function status(owner)
  if plain and sole.owner == owner then
    -- A full server allows the rest only after a write without new memory.
    call('HDEL', entries, '')
    return {1, next_token(), now, sole.ends, 1}
  elseif plain or not kind then
    return {0, 0, now, 0, plain and sole.entry or '', plain and sole.ends or 0}
  end
  local ends = sole and sole.owner == owner and sole.ends or not sole and call('ZSCORE', holders, owner)
  local weight, first_lease, token, since, channel, value = entry(owner)
  if ends and weight then
    -- An owner that acquired a plain string took its token from the counter.
    if token == '0' then
      token = digits(next_token())
      write_entry(owner, weight, first_lease, token, since, channel, value)
    end
    return {1, tonumber(token), now, tonumber(ends), 0}
  elseif ends then
    -- An evicting server has lost the entry: the next script recounts weights.
    due, changed = 0, true
    call('ZREM', holders, owner)
  end
  local ticket = call('ZSCORE', queue, owner)
  if ticket then
    return waiting_status(owner, tonumber(ticket))
  end
  local holder, holder_ends = any_holder()
  return {0, call('ZCARD', queue), now, 0, holder, holder_ends}
end

