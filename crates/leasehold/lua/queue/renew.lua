-- queue/renew
--
-- Extends what an owner has to at least the requested length from now: its
-- lease if it holds, its heartbeat if it waits. Never shortens or creates
-- either. Does not extend a lock that its owner has released.
--
-- Preceded by queue/prelude.
--
-- ARGV[1]  owner   string; 32 hex digits
-- ARGV[2]  length  integer from 1
--
-- Returns
--   status  of the owner; see queue/prelude
--   error LEASEHOLD  an argument is out of range; nothing was changed

local owner, length = ARGV[1], tonumber(ARGV[2])

if not in_range(length, 1) then
  return redis.error_reply('LEASEHOLD length is out of range')
end
local alone, ends = state.alone, now + length
local reply
if alone and alone.owner == owner then
  alone.ends = max(alone.ends, math.ceil(ends / 1000) * 1000)
  call('PEXPIREAT', lock, format('%d', alone.ends / 1000))
elseif state.kind and not alone then
  -- A full server allows what follows only after a write that needs no memory.
  call('HDEL', entries, '')
  evict_expired(state)
  if call('ZADD', heartbeats, 'XX', 'GT', 'CH', format('%d', ends), owner) == 1 then
    state.last_expiry = max(state.last_expiry, ends)
    -- A heartbeat's ticket is 0.
    reply = {2, call('ZRANK', queue, owner), now, 0, any_holder()}
  else
    local _, _, _, _, channel = entry(owner)
    if channel and channel ~= '-' then
      -- Written even if it changes nothing: replicas acknowledge writes only.
      call('ZADD', holders, 'XX', 'GT', format('%d', ends), owner)
      state.last_expiry, state.is_changed = max(state.last_expiry, ends), true
    end
  end
end
return store(state, reply or status(state, owner))
