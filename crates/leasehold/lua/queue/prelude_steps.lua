-- queue/prelude_steps (prelude)
--
-- What the scripts of this folder do to the state that queue/prelude_state has read.
--
-- Standing: how an owner stands, the reply of most scripts
--   [1, token, now, end, alone]          it holds; 1 where the lock is one plain string, else 0
--   [2, ahead, now, ticket, entry, end]  it waits; the number of owners before it; a holder and its end
--   [0, waiting, now, 0, entry, end]     it is not known; the number of waiters; a holder and its end
--   [3, capacity, now]                   it asks for more than the capacity

-- Makes an owner a holder. One beside others stands in the sets, and so does the one that was alone before.
local function admit(owner, lease, weight, first, channel, mark)
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
  enrol(owner, weight, first, digits(token), digits(now), channel, mark)
  return token, ends
end

local function enqueue(owner, ticket, ends, weight, first, channel, mark)
  call('ZADD', queue, digits(ticket), owner)
  call('ZADD', heartbeats, digits(ends), owner)
  enrol(owner, weight, first, 0, 0, channel, mark)
  due, last, changed = min(due, ends), max(last, ends), changed or ends < due
end

-- Takes a waiter out of the queue.
local function drop(owner)
  call('ZREM', queue, owner)
  call('ZREM', heartbeats, owner)
  call('HDEL', entries, owner)
end

-- Grants the lock to the head of the queue, as long as that fits.
local function promote()
  while used < capacity do
    local is_free = used == 0
    local owner = (is_free and call('ZPOPMIN', queue) or call('ZRANGE', queue, '0', '0'))[1]
    if not owner then
      return
    end
    local weight, first, _, _, channel, mark = entry(owner)
    if not weight then
      -- An evicting server has lost the entries.
      drop(owner)
    elseif used + weight > capacity then
      return
    else
      if not is_free then
        call('ZREM', queue, owner)
      end
      call('ZREM', heartbeats, owner)
      local token, ends = admit(owner, first, weight, first, channel, mark)
      -- A client that may not hear of it finds out at its next heartbeat; the script must not stop halfway.
      redis.pcall('SPUBLISH', channel, owner .. ' ' .. digits(token) .. ' ' .. digits(ends))
    end
  end
end

-- Removes holders whose lease has ended and waiters that count as dead, and promotes. A `due` of 0 says that an evicting
-- server has lost entries, and that the weights are to be counted.
local function settle()
  if due > now then
    return
  end
  -- A write that needs no memory comes first: what follows is then allowed on a full server.
  call('HDEL', entries, '')
  local ended = sole and {sole.ends <= now and sole.owner} or call('ZRANGEBYSCORE', holders, '-inf', digits(now))
  for _, owner in ipairs(ended[1] and ended or {}) do
    used, fresh[holders] = used - (entry(owner) or 0), true
    sole = nil
    call('ZREM', holders, owner)
    call('HDEL', entries, owner)
  end
  for _, owner in ipairs(call('ZRANGEBYSCORE', heartbeats, '-inf', digits(now))) do
    drop(owner)
  end
  if due == 0 and not sole then
    used = 0
    for _, owner in ipairs(call('ZRANGE', holders, '0', '-1')) do
      used = used + (entry(owner) or 0)
    end
  end
  local first = sole and {sole.owner, sole.ends} or call('ZRANGE', holders, '0', '0', 'WITHSCORES')
  used, due, changed = first[1] and used or 0, tonumber(first[2] or NEVER), true
  promote()
  due = min(due, tonumber(call('ZRANGE', heartbeats, '0', '0', 'WITHSCORES')[2] or NEVER))
end

-- The entry of a holder and when its lease ends.
local function shown()
  if sole then
    return sole.entry, sole.ends
  end
  local held = call('ZRANGE', holders, '0', '0', 'WITHSCORES')
  return held[1] and call('HGET', entries, held[1]) or '', tonumber(held[2] or 0)
end

-- How an owner stands that has a heartbeat; nil where an evicting server has lost its place. A heartbeat does not ask for
-- the ticket: its owner has it.
local function waiting(owner, ticket)
  local ahead = call('ZRANK', queue, owner)
  if not ahead then
    return drop(owner)
  end
  local holder, ends = shown()
  return {2, ahead, now, ticket, holder, ends}
end

local function standing(owner)
  if plain and sole.owner == owner then
    -- A write that needs no memory comes first: what follows is then allowed on a full server.
    call('HDEL', entries, '')
    return {1, next_token(), now, sole.ends, 1}
  elseif plain or not kind then
    return {0, 0, now, 0, plain and sole.entry or '', plain and sole.ends or 0}
  end
  local ends = sole and sole.owner == owner and sole.ends or not sole and call('ZSCORE', holders, owner)
  local weight, first, token, since, channel, mark = entry(owner)
  if ends and weight then
    -- An owner that acquired the lock while it was a plain string has its token from the counter.
    if token == '0' then
      token = digits(next_token())
      enrol(owner, weight, first, token, since, channel, mark)
    end
    return {1, tonumber(token), now, tonumber(ends), 0}
  elseif ends then
    -- An evicting server has lost its entry: the holder finds out, and the weights are counted anew.
    due, changed = 0, true
    call('ZREM', holders, owner)
  end
  local ticket = call('ZSCORE', queue, owner)
  if ticket then
    return waiting(owner, tonumber(ticket))
  end
  local holder, left = shown()
  return {0, call('ZCARD', queue), now, 0, holder, left}
end
