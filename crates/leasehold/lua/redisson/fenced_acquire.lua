-- redisson/fenced_acquire
--
-- Acquires a fenced lock that is free. Repeated by the same owner, returns the
-- same token and counts no second hold.
--
-- KEYS[1]  lock      hash; owner -> hold count
-- KEYS[2]  token     integer; the last token issued
-- ARGV[1]  owner     string; client and thread, in Redisson's notation
-- ARGV[2]  lease_ms  integer from 1; milliseconds
--
-- Returns
--   list  token: the owner holds the lock
--   list  remaining_ms, field: another owner holds it; a field of the hash

local lock, token = KEYS[1], KEYS[2]
local owner, lease_ms = ARGV[1], ARGV[2]

if redis.call('EXISTS', lock) == 0 then
  local issued = redis.call('INCR', token)
  redis.call('HSET', lock, owner, 1)
  redis.call('PEXPIRE', lock, lease_ms)
  return {issued}
end
if redis.call('HEXISTS', lock, owner) == 1 then
  return {tonumber(redis.call('GET', token))}
end
return {redis.call('PTTL', lock), redis.call('HRANDFIELD', lock)}
