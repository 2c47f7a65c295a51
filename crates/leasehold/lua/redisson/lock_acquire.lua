-- redisson/lock_acquire
--
-- Takes a lock if nobody holds it. Asked again by the same owner, it is held once as before.
--
-- KEYS[1]  lock      hash; the owner's field counts how often it was entered
-- ARGV[1]  owner     string; client and thread, as Redisson writes them
-- ARGV[2]  lease_ms  integer from 1; milliseconds
--
-- Returns
--   1     it is ours
--   list  left_ms, field: somebody else's: for how long unless renewed, and a field of the hash

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
