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

if not in_range(length or 0) then
  return redis.error_reply('LEASEHOLD length is out of range')
end
local reply
if alone and alone.owner == owner then
  alone.ends = max(alone.ends, math.ceil((now + length) / 1000) * 1000)
  call('PEXPIREAT', lock, digits(alone.ends / 1000))
elseif expiry > 0 then
  -- A full server allows what follows only after a write that needs no memory.
  call('HDEL', entries, '')
  evict_expired()
  if call('ZADD', heartbeats, 'XX', 'GT', 'CH', digits(now + length), owner) == 1 then
    last_expiry = max(last_expiry, now + length)
    reply = waiting_status(owner, 0)
  else
    local _, _, _, _, channel = entry(owner)
    if channel and channel ~= '-' then
      -- Written even if it changes nothing: replicas acknowledge writes only.
      call('ZADD', holders, 'XX', 'GT', digits(now + length), owner)
      last_expiry, changed = max(last_expiry, now + length), true
    end
  end
end
return store_and(reply or status(owner))
