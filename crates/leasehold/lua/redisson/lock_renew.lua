-- redisson/lock_renew
--
-- Extends a lease to at least the requested length from now, if the caller
-- owns the lock. Never shortens it.
--
-- Preceded by redisson/renew_prelude.
--
-- KEYS[1]  lock      hash; owner -> hold count
-- ARGV[1]  owner     string; client and thread, in Redisson's notation
-- ARGV[2]  lease_ms  integer from 1; milliseconds
--
-- Returns
--   1  renewed
--   0  not the owner; nothing was changed

local lock = KEYS[1]
local owner, lease_ms = ARGV[1], ARGV[2]

if redis.call('HEXISTS', lock, owner) == 0 then
  return 0
end
extend_ttl(lock, lease_ms)
return 1
