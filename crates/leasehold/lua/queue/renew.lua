-- queue/renew
--
-- Makes what an owner has last at least so long from now: its lease if it holds, its place if it waits.
-- Never shortens either, never makes one, and leaves a lock alone that is released and only kept from others.
--
-- ARGV[1]  owner   string; 32 hex digits
-- ARGV[2]  length  integer from 1
--
-- Returns
--   standing  of the owner; see queue/steps
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local owner, length = ARGV[1], tonumber(ARGV[2])

if not in_range(length or 0) then
  return redis.error_reply('LEASEHOLD length is out of its range')
end
local reply
if alone and alone.owner == owner then
  alone.ends = max(alone.ends, math.ceil((now + length) / 1000) * 1000)
  call('PEXPIREAT', lock, alone.ends / 1000)
elseif expiry > 0 then
  -- A write that needs no memory comes first: what follows is then allowed on a full server.
  call('HDEL', entries, '')
  settle()
  last = max(last, now + length)
  if call('ZADD', heartbeats, 'XX', 'GT', 'CH', now + length, owner) == 1 then
    reply = waiting(owner, 0)
  else
    local _, _, _, _, channel = entry(owner)
    if channel ~= '-' then
      call('ZADD', holders, 'XX', 'GT', now + length, owner)
    end
  end
end
store()
return reply or standing(owner)
