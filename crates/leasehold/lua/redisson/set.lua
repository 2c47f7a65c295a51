-- redisson/set
--
-- Sets a number that is not there, and announces it: the permits of a semaphore, the count of a latch.
--
-- KEYS[1]  key      integer; absent where it was never set, or a latch is open
-- KEYS[2]  channel  string; where waiters listen
-- ARGV[1]  number   integer; what it is to be
-- ARGV[2]  publish  string; the command by which this fleet announces
-- ARGV[3]  message  string; what is announced
--
-- Returns
--   1  set
--   0  it is there already; nothing was changed

local key, channel = KEYS[1], KEYS[2]
local number, publish, message = ARGV[1], ARGV[2], ARGV[3]

if redis.call('EXISTS', key) == 1 then
  return 0
end
redis.call('SET', key, number)
redis.pcall(publish, channel, message)
return 1
