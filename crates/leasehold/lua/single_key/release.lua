-- single_key/release
--
-- Deletes a lock if the caller owns it, and wakes its waiters. Used on servers
-- without a compare-and-delete command (DELEX, DELIFEQ).
--
-- KEYS[1]  lock     string; see lua/README.md
-- ARGV[1]  value    string; written by the owner when it acquired
-- ARGV[2]  channel  string; the waiters' channel
--
-- Returns
--   n  deleted; one more than the number of notified connections
--   0  not the owner; nothing was changed

local lock = KEYS[1]
local value, channel = ARGV[1], ARGV[2]

if redis.call('GET', lock) ~= value then
  return 0
end
redis.call('DEL', lock)
-- A refused publish must not fail the release: waiters then find it by polling.
local notified = redis.pcall('SPUBLISH', channel, '')
if type(notified) == 'table' then
  -- An error: there are no sharded channels here, or not for this user.
  notified = redis.pcall('PUBLISH', channel, '')
end
return (tonumber(notified) or 0) + 1
