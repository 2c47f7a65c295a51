-- redisson/fair_force_unlock
--
-- Revokes a lock from its holder, and wakes the next waiter.
--
-- Preceded by redisson/clock_prelude and redisson/fair_prelude.
--
-- KEYS[4]  channel  string; followed by a waiter's name
-- ARGV[3]  publish  string; the publish command of this deployment
--
-- Returns
--   1  revoked
--   0  the lock was free

local channel = KEYS[4]
local publish = ARGV[3]

if redis.call('DEL', lock) == 0 then
  return 0
end
if head then
  redis.pcall(publish, channel .. ':' .. head, '0')
end
return 1
