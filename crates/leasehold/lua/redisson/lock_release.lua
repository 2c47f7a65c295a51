-- redisson/lock_release
--
-- Releases a lock with any hold count, and wakes the waiters; or keeps
-- other clients out until it expires, under a field that no renewal in flight
-- matches.
--
-- KEYS[1]  lock         hash; owner -> hold count
-- KEYS[2]  channel      string; the waiters' channel
-- ARGV[1]  owner        string; client and thread, in Redisson's notation
-- ARGV[2]  hold_for_ms  integer from 0; milliseconds until the lock is free
-- ARGV[3]  publish      string; the publish command of this deployment
-- ARGV[4]  released     string; the field after a release with hold_for_ms
--
-- Returns
--   1  the lock is free or expires, also if it was released like this before
--   0  not the owner; nothing was changed

local lock, channel = KEYS[1], KEYS[2]
local owner, hold_for_ms, publish, released = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

if hold_for_ms > 0 and redis.call('HEXISTS', lock, released) == 1 then
  return 1
end
if redis.call('HEXISTS', lock, owner) == 0 then
  return 0
end
if hold_for_ms > 0 then
  -- A full server allows the HSET only after a write that needs no memory.
  redis.call('PEXPIRE', lock, hold_for_ms)
  redis.call('HSET', lock, released, 1)
  redis.call('HDEL', lock, owner)
  return 1
end
redis.call('DEL', lock)
redis.pcall(publish, channel, '0')
return 1
