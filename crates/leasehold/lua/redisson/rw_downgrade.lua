-- redisson/rw_downgrade
--
-- Makes the writer a reader for the rest of its lease, and wakes those who wait, since readers may enter now.
--
-- KEYS[3]  channel  string; where waiters listen
-- ARGV[2]  publish  string; the command by which this fleet announces
--
-- Returns
--   1  it reads
--   0  it neither writes nor reads; nothing was changed

local channel = KEYS[3]
local publish = ARGV[2]

if redis.call('HEXISTS', lock, owner) == 1 then
  return 1
end
local entries = redis.call('HGET', lock, writer)
if not entries then
  return 0
end
redis.call('HSET', lock, 'mode', 'read', owner, entries)
redis.call('HDEL', lock, writer)
for number = 1, entries do
  redis.call('SET', entry(owner, number), 1, 'PX', math.max(1, redis.call('PTTL', lock)))
end
redis.pcall(publish, channel, '1')
return 1
