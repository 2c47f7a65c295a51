-- redisson/latch_delete
--
-- Deletes a latch, which opens it for those who wait.
--
-- KEYS[1]  latch    integer; how many are still to come; absent when it is open
-- KEYS[2]  channel  string; where waiters listen
-- ARGV[1]  publish  string; the command by which this fleet announces
--
-- Returns
--   1  deleted
--   0  there was none

local latch, channel = KEYS[1], KEYS[2]
local publish = ARGV[1]

if redis.call('DEL', latch) == 0 then
  return 0
end
redis.call(publish, channel, '0')
return 1
