-- redisson/set
--
-- Sets a number that is absent, and announces it: the permits of a semaphore,
-- or the count of a latch.
--
-- KEYS[1]  key      integer; absent if it was never set, or a latch is open
-- KEYS[2]  channel  string; the waiters' channel
-- ARGV[1]  number   integer; the new number
-- ARGV[2]  publish  string; the publish command of this deployment
-- ARGV[3]  message  string; the message to publish
--
-- Returns
--   1  set
--   0  the number exists; nothing was changed

local key, channel = KEYS[1], KEYS[2]
local number, publish, message = ARGV[1], ARGV[2], ARGV[3]

if redis.call('EXISTS', key) == 1 then
  return 0
end
redis.call('SET', key, number)
redis.pcall(publish, channel, message)
return 1
