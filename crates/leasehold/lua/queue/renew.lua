-- queue/renew
--
-- Makes what an owner has last at least so long from now: its lease if it holds, its place if it waits.
-- Never shortens either, never makes one, and leaves a lock alone that is released and only kept from others.
--
-- ARGV[1]  owner   string; 32 hex digits
-- ARGV[2]  length  integer from 1
--
-- Returns
--   standing  of the owner; see queue/prelude_steps
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local owner, length = ARGV[1], tonumber(ARGV[2])

if not in_range(length or 0) then
  return redis.error_reply('LEASEHOLD length is out of its range')
end
local reply
if plain and sole.owner == owner then
  sole.ends = max(sole.ends, math.ceil((now + length) / 1000) * 1000)
  call('PEXPIREAT', lock, digits(sole.ends / 1000))
elseif expiry > 0 then
  -- A write that needs no memory comes first: what follows is then allowed on a full server.
  call('HDEL', entries, '')
  settle()
  local holds = sole and sole.owner == owner
  if not holds and call('ZADD', heartbeats, 'XX', 'GT', 'CH', digits(now + length), owner) == 1 then
    last = max(last, now + length)
    reply = waiting(owner, 0)
  else
    local _, _, _, _, channel = entry(owner)
    if holds and channel ~= '-' then
      sole.ends, last, changed = max(sole.ends, now + length), max(last, now + length), true
    elseif channel and channel ~= '-' then
      -- Written even where it changes nothing: what replicas acknowledge is a write.
      call('ZADD', holders, 'XX', 'GT', digits(now + length), owner)
      last, changed = max(last, now + length), true
    end
  end
end
return stored(reply or standing(owner))
