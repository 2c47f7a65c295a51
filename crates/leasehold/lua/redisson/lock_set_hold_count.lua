-- redisson/lock_set_hold_count
--
-- Writes how often a lock has been entered, if it is still ours. The number, not a difference: it can be repeated.
--
-- KEYS[1]  lock     hash; the owner's field counts how often it was entered
-- ARGV[1]  owner    string; client and thread, as Redisson writes them
-- ARGV[2]  entries  integer from 1; how often
--
-- Returns
--   1  written
--   0  it is not ours; nothing was changed

local lock = KEYS[1]
local owner, entries = ARGV[1], ARGV[2]

if redis.call('HEXISTS', lock, owner) == 0 then
  return 0
end
redis.call('HSET', lock, owner, entries)
return 1
