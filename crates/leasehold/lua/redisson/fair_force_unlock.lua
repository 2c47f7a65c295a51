-- redisson/fair_force_unlock
--
-- Takes a lock away from whoever holds it, and calls the next in line.
--
-- KEYS[4]  channel  string; where each waiter listens below its own name
-- ARGV[3]  publish  string; the command by which this fleet announces
--
-- Returns
--   1  somebody held it
--   0  nobody did

local channel = KEYS[4]
local publish = ARGV[3]

if redis.call('DEL', lock) == 0 then
  return 0
end
if head then
  redis.pcall(publish, channel .. ':' .. head, '0')
end
return 1
