-- redisson/lock_release
--
-- Releases a lock if the owner holds it, however often it was entered, and wakes waiters; or keeps it
-- from others until it ends by itself, under a field that no renewal under way has.
--
-- KEYS[1]  lock     hash; the owner's field counts how often it was entered
-- KEYS[2]  channel  string; where waiters listen
-- ARGV[1]  owner    string; client and thread, as Redisson writes them
-- ARGV[2]  keep_ms  integer from 0; milliseconds until it is free
-- ARGV[3]  publish  string; the command by which this fleet announces
-- ARGV[4]  kept     string; the field in place of the owner's while the lock is kept
--
-- Returns
--   1  it is free, or will be; also where it was so released before
--   0  it was not ours; nothing was changed

local lock, channel = KEYS[1], KEYS[2]
local owner, keep_ms, publish, kept = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

if keep_ms > 0 and redis.call('HEXISTS', lock, kept) == 1 then
  return 1
end
if redis.call('HEXISTS', lock, owner) == 0 then
  return 0
end
if keep_ms > 0 then
  -- A write that needs no memory comes first: what follows is then allowed on a full server.
  redis.call('PEXPIRE', lock, keep_ms)
  redis.call('HSET', lock, kept, 1)
  redis.call('HDEL', lock, owner)
  return 1
end
redis.call('DEL', lock)
redis.pcall(publish, channel, '0')
return 1
