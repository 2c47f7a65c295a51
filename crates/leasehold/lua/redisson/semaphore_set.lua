-- redisson/semaphore_set
--
-- Sets the permits of a semaphore that has none yet, and wakes those who wait.
--
-- KEYS[1]  available  integer; how many there are
-- KEYS[2]  channel    string; where waiters listen
-- ARGV[1]  permits    integer; how many there are to be
-- ARGV[2]  publish    string; the command by which this fleet announces
--
-- Returns
--   1  set
--   0  there are permits already, or were; nothing was changed

local available, channel = KEYS[1], KEYS[2]
local permits, publish = ARGV[1], ARGV[2]

if redis.call('EXISTS', available) == 1 then
  return 0
end
redis.call('SET', available, permits)
redis.call(publish, channel, permits)
return 1
