-- redisson/lock_set_hold_count
--
-- Writes the hold count of a lock, if the caller owns it. The count is
-- absolute, so the call can be repeated.
--
-- KEYS[1]  lock   hash; owner -> hold count
-- ARGV[1]  owner  string; client and thread, in Redisson's notation
-- ARGV[2]  holds  integer from 1; the hold count
--
-- Returns
--   1  written
--   0  not the owner; nothing was changed

local lock = KEYS[1]
local owner, holds = ARGV[1], ARGV[2]

if redis.call('HEXISTS', lock, owner) == 0 then
  return 0
end
redis.call('HSET', lock, owner, holds)
return 1
