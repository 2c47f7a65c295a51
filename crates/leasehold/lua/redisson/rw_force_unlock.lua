-- redisson/rw_force_unlock
--
-- Revokes a read-write lock that is held in one mode from all its holders, and
-- wakes the waiters.
--
-- KEYS[1]  lock     hash; mode, and a field per reader or for the writer
-- KEYS[2]  channel  string; the waiters' channel
-- ARGV[1]  mode     string; read or write
-- ARGV[2]  publish  string; the publish command of this deployment
--
-- Returns
--   1  revoked
--   0  not held in this mode; nothing was changed

local lock, channel = KEYS[1], KEYS[2]
local mode, publish = ARGV[1], ARGV[2]

if redis.call('HGET', lock, 'mode') ~= mode then
  return 0
end
redis.call('DEL', lock)
redis.pcall(publish, channel, mode == 'read' and '0' or '1')
return 1
