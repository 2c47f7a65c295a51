-- redisson/rw_force_unlock
--
-- Takes a read-write lock away from those who hold it in one mode, and wakes those who wait.
--
-- KEYS[1]  lock     hash; mode, and a field per reader or for the writer
-- KEYS[2]  channel  string; where waiters listen
-- ARGV[1]  mode     string; read or write
-- ARGV[2]  publish  string; the command by which this fleet announces
--
-- Returns
--   1  somebody held it so
--   0  nobody did; nothing was changed

local lock, channel = KEYS[1], KEYS[2]
local mode, publish = ARGV[1], ARGV[2]

if redis.call('HGET', lock, 'mode') ~= mode then
  return 0
end
redis.call('DEL', lock)
redis.pcall(publish, channel, mode == 'read' and '0' or '1')
return 1
