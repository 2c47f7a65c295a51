-- redisson/lock_renew
--
-- Makes the lease of a lock last at least so long from now, if it is still ours. Never shortens it.
--
-- KEYS[1]  lock      hash; the owner's field counts how often it was entered
-- ARGV[1]  owner     string; client and thread, as Redisson writes them
-- ARGV[2]  lease_ms  integer from 1; milliseconds
--
-- Returns
--   1  renewed
--   0  it is not ours; nothing was changed

local lock = KEYS[1]
local owner, lease_ms = ARGV[1], ARGV[2]

if redis.call('HEXISTS', lock, owner) == 0 then
  return 0
end
if redis.call('PEXPIRE', lock, lease_ms, 'GT') == 0 then
  -- Written all the same: what replicas acknowledge is a write.
  local at = redis.call('PEXPIRETIME', lock)
  if at > 0 then
    redis.call('PEXPIREAT', lock, at)
  end
end
return 1
