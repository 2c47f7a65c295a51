-- redisson/fenced_acquire
--
-- Takes a lock that counts its holders if nobody holds it. Asked again by the same owner, it is held once as
-- before, with the same token.
--
-- KEYS[1]  lock      hash; the owner's field counts how often it was entered
-- KEYS[2]  token     integer; the last one given out
-- ARGV[1]  owner     string; client and thread, as Redisson writes them
-- ARGV[2]  lease_ms  integer from 1; milliseconds
--
-- Returns
--   list  token alone: it is ours
--   list  left_ms, field: somebody else's: for how long unless renewed, and a field of the hash

local lock, token = KEYS[1], KEYS[2]
local owner, lease_ms = ARGV[1], ARGV[2]

if redis.call('EXISTS', lock) == 0 then
  local given = redis.call('INCR', token)
  redis.call('HSET', lock, owner, 1)
  redis.call('PEXPIRE', lock, lease_ms)
  return {given}
end
if redis.call('HEXISTS', lock, owner) == 1 then
  return {tonumber(redis.call('GET', token))}
end
return {redis.call('PTTL', lock), redis.call('HRANDFIELD', lock)}
