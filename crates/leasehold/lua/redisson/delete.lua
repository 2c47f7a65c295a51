-- redisson/delete
--
-- Takes a lock away from whoever holds it, or deletes a latch, which opens it; and wakes those who wait.
--
-- KEYS[1]  key      hash of a lock, or integer of a latch
-- KEYS[2]  channel  string; where waiters listen
-- ARGV[1]  publish  string; the command by which this fleet announces
--
-- Returns
--   1  deleted
--   0  there was none; nothing was changed

local key, channel = KEYS[1], KEYS[2]
local publish = ARGV[1]

if redis.call('DEL', key) == 0 then
  return 0
end
redis.pcall(publish, channel, '0')
return 1
