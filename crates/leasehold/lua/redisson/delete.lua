-- redisson/delete
--
-- Deletes a lock, which revokes it, or a latch, which opens it, and wakes the
-- waiters.
--
-- KEYS[1]  key      hash of a lock, or integer of a latch
-- KEYS[2]  channel  string; the waiters' channel
-- ARGV[1]  publish  string; the publish command of this deployment
--
-- Returns
--   1  deleted
--   0  the key did not exist; nothing was changed

local key, channel = KEYS[1], KEYS[2]
local publish = ARGV[1]

if redis.call('DEL', key) == 0 then
  return 0
end
redis.pcall(publish, channel, '0')
return 1
