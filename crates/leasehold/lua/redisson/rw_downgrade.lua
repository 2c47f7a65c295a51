-- redisson/rw_downgrade
--
-- Makes the writer a reader for the rest of its lease, and wakes the waiters,
-- because readers can now acquire the lock.
--
-- Preceded by redisson/rw_prelude.
--
-- KEYS[3]  channel  string; the waiters' channel
-- ARGV[2]  publish  string; the publish command of this deployment
--
-- Returns
--   1  the owner is a reader
--   0  the owner holds nothing; nothing was changed

local channel = KEYS[3]
local publish = ARGV[2]

if redis.call('HEXISTS', lock, owner) == 1 then
  return 1
end
local holds = redis.call('HGET', lock, writer)
if not holds then
  return 0
end
redis.call('HSET', lock, 'mode', 'read', owner, holds)
redis.call('HDEL', lock, writer)
for number = 1, holds do
  redis.call('SET', hold(owner, number), 1, 'PX', math.max(1, redis.call('PTTL', lock)))
end
redis.pcall(publish, channel, '1')
return 1
