-- redisson/latch_set
--
-- Sets the count of a latch that has none, and tells those who wait that it is closed.
--
-- KEYS[1]  latch    integer; how many are still to come; absent when it is open
-- KEYS[2]  channel  string; where waiters listen
-- ARGV[1]  count    integer from 1; how many
-- ARGV[2]  publish  string; the command by which this fleet announces
--
-- Returns
--   1  set
--   0  it is closed already; nothing was changed

local latch, channel = KEYS[1], KEYS[2]
local count, publish = ARGV[1], ARGV[2]

if redis.call('EXISTS', latch) == 1 then
  return 0
end
redis.call('SET', latch, count)
redis.call(publish, channel, '1')
return 1
