-- redisson/lock_force
--
-- Takes a lock away from whoever holds it and wakes those who wait.
--
-- KEYS[1]  lock     hash; the owner's field counts how often it was entered
-- KEYS[2]  channel  string; where waiters listen
-- ARGV[1]  publish  string; the command by which this fleet announces
--
-- Returns
--   1  somebody held it
--   0  nobody did; nothing was changed

local lock, channel = KEYS[1], KEYS[2]
local publish = ARGV[1]

if redis.call('DEL', lock) == 0 then
  return 0
end
redis.call(publish, channel, '0')
return 1
