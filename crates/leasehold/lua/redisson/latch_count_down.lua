-- redisson/latch_count_down
--
-- Counts down once under one note, and opens the latch for those who wait when nothing is left to come.
--
-- KEYS[1]  latch     integer; how many are still to come; absent when it is open
-- KEYS[2]  note      string; that it has been counted, for those who ask again
-- KEYS[3]  channel   string; where waiters listen
-- ARGV[1]  noted_ms  integer from 1; how long it is noted
-- ARGV[2]  publish   string; the command by which this fleet announces
--
-- Returns
--   n  how many are still to come
--   0  none: it is open

local latch, note, channel = KEYS[1], KEYS[2], KEYS[3]
local noted_ms, publish = ARGV[1], ARGV[2]

local left = tonumber(redis.call('GET', latch) or 0)
if left == 0 or redis.call('EXISTS', note) == 1 then
  return left
end
redis.call('SET', note, 1, 'PX', noted_ms)
if left > 1 then
  return redis.call('DECR', latch)
end
redis.call('DEL', latch)
redis.pcall(publish, channel, '0')
return 0
