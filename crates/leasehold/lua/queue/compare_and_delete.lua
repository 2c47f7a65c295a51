-- queue/compare_and_delete
--
-- Deletes a lock that is a plain string if the caller owns it. Used on servers
-- without a compare-and-delete command (DELEX, DELIFEQ). No prelude precedes
-- it.
--
-- KEYS[1]  lock   string; see lua/README.md
-- ARGV[1]  value  string; written by the owner when it acquired
--
-- Returns
--   1  deleted
--   0  not the owner, or the lock has a queue; nothing was changed

local lock = KEYS[1]
local value = ARGV[1]

if redis.call('GET', lock) ~= value then
  return 0
end
redis.call('DEL', lock)
return 1
