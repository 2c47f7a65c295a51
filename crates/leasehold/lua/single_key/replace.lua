-- single_key/replace
--
-- Replaces the owner's value, and keeps other clients out for a while longer:
-- after a release before `at_least` is over, or until a lock that was handed
-- over is adopted. The key expires after exactly that time. No renewal compares
-- with the new value, so a renewal in flight cannot prolong it.
--
-- KEYS[1]  lock         string; see lua/README.md
-- ARGV[1]  value        string; written by the owner when it acquired
-- ARGV[2]  hold_for_ms  integer from 1; milliseconds until the lock is free
-- ARGV[3]  new_value    string; the value from now on
--
-- Returns
--   1  the lock expires after that time, or was replaced like this before
--   0  not the owner; nothing was changed
--   error LEASEHOLD  an argument is out of range; nothing was changed

local lock = KEYS[1]
local value, hold_for_ms, new_value = ARGV[1], tonumber(ARGV[2]), ARGV[3]

if not hold_for_ms or hold_for_ms < 1 or hold_for_ms % 1 ~= 0 then
  return redis.error_reply('LEASEHOLD hold_for_ms is out of range')
end
local found = redis.call('GET', lock)
if found == new_value then
  return 1
end
if found ~= value then
  return 0
end
-- A full server allows the SET only after a write that needs no memory.
redis.call('PEXPIRE', lock, hold_for_ms)
redis.call('SET', lock, new_value, 'KEEPTTL')
return 1
