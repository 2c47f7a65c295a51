-- redisson/lock_release
--
-- Gives a lock back if it is still ours, however often it was entered, and wakes those who wait; or leaves it to
-- end by itself.
--
-- KEYS[1]  lock     hash; the owner's field counts how often it was entered
-- KEYS[2]  channel  string; where waiters listen
-- ARGV[1]  owner    string; client and thread, as Redisson writes them
-- ARGV[2]  keep_ms  integer from 0; milliseconds until it is free
-- ARGV[3]  publish  string; the command by which this fleet announces
--
-- Returns
--   1  it is free, or will be
--   0  it was not ours; nothing was changed

local lock, channel = KEYS[1], KEYS[2]
local owner, keep_ms, publish = ARGV[1], tonumber(ARGV[2]), ARGV[3]

if redis.call('HEXISTS', lock, owner) == 0 then
  return 0
end
if keep_ms > 0 then
  redis.call('PEXPIRE', lock, keep_ms)
  return 1
end
redis.call('DEL', lock)
redis.pcall(publish, channel, '0')
return 1
