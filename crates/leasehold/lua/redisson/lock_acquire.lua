-- redisson/lock_acquire
--
-- Acquires a lock that is free. Repeated by the same owner, counts no second
-- hold.
--
-- KEYS[1]  lock      hash; owner -> hold count
-- ARGV[1]  owner     string; client and thread, in Redisson's notation
-- ARGV[2]  lease_ms  integer from 1; milliseconds
--
-- Returns
--   1     the owner holds the lock
--   list  remaining_ms, field: another owner holds it; a field of the hash

local lock = KEYS[1]
local owner, lease_ms = ARGV[1], ARGV[2]

if redis.call('EXISTS', lock) == 0 then
  redis.call('HSET', lock, owner, 1)
  redis.call('PEXPIRE', lock, lease_ms)
  return 1
end
if redis.call('HEXISTS', lock, owner) == 1 then
  return 1
end
return {redis.call('PTTL', lock), redis.call('HRANDFIELD', lock)}
