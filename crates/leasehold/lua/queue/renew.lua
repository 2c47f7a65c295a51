-- queue/renew
--
-- Makes what an owner has last at least so long from now: its lease if it holds, its place if it
-- waits. Never shortens either, never makes one, and leaves a lock alone that is released and only kept from others.
--
-- ARGV[1]  owner   string; 32 hex digits
-- ARGV[2]  length  integer from 1
--
-- Returns
--   standing  of the owner; see queue/line
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local owner, length = ARGV[1], tonumber(ARGV[2])

if not length or length < 1 or length % 1 ~= 0 then
  return redis.error_reply('LEASEHOLD length is out of its range')
end
-- A write that needs no memory comes first: what follows is then allowed on a full server.
redis.call('HDEL', lock, '')
settle()
local set = queued and redis.call('ZSCORE', line, owner) and alive
if redis.call('ZSCORE', holders, owner) then
  local _, _, _, _, _, channel = entry(owner)
  set = channel ~= '-' and holders
end
if set then
  redis.call('ZADD', set, 'GT', now + length, owner)
  last = math.max(last, now + length)
end
store()
return standing(owner)
