-- single_key/renew
--
-- Extends a lease to at least the requested length from now, if the caller
-- owns the lock. Never shortens it, so two renewals may arrive in any order.
--
-- KEYS[1]  lock      string; see lua/README.md
-- ARGV[1]  value     string; written by the owner when it acquired
-- ARGV[2]  lease_ms  integer from 1; milliseconds
--
-- Returns
--   1   renewed
--   0   the lock is free; nothing was changed
--   -1  another owner holds it; nothing was changed
--   error LEASEHOLD  an argument is out of range; nothing was changed

local lock = KEYS[1]
local value, lease_ms = ARGV[1], tonumber(ARGV[2])

if not lease_ms or lease_ms < 1 or lease_ms % 1 ~= 0 then
  return redis.error_reply('LEASEHOLD lease_ms is out of range')
end
local found = redis.call('GET', lock)
if not found then
  return 0
end
if found ~= value then
  return -1
end
if redis.call('PEXPIRE', lock, lease_ms, 'GT') == 0 then
  -- Writes the same expiry again: replicas acknowledge writes only.
  local expiry = redis.call('PEXPIRETIME', lock)
  if expiry > 0 then
    redis.call('PEXPIREAT', lock, expiry)
  end
end
return 1
