-- quorum/release
--
-- Deletes a lock on one node of a quorum if the caller owns it, and wakes its
-- waiters.
--
-- KEYS[1]  lock     string; see lua/README.md
-- ARGV[1]  value    string; written by the owner when it acquired
-- ARGV[2]  channel  string; the waiters' channel
-- ARGV[3]  message  string; the same on all nodes, different for each release
--
-- Returns
--   1  deleted
--   0  not the owner; nothing was changed

local lock = KEYS[1]
local value, channel, message = ARGV[1], ARGV[2], ARGV[3]

if redis.call('GET', lock) ~= value then
  return 0
end
redis.call('DEL', lock)
-- A refused publish must not fail the release: waiters then find it by polling.
-- Nodes may differ in what they can publish, so each decides by itself.
if type(redis.pcall('SPUBLISH', channel, message)) == 'table' then
  redis.pcall('PUBLISH', channel, message)
end
return 1
