-- quorum/renew
--
-- Extends a lease on one node to at least the requested length from now, if
-- the caller owns the lock there.
--
-- Preceded by quorum/prelude.
--
-- KEYS[1]  lock      string; see lua/README.md
-- KEYS[2]  voter     hash; whether this node votes, see quorum/rejoin
-- ARGV[1]  value     string; written by the owner when it acquired
-- ARGV[2]  lease_ms  integer from 1; milliseconds
--
-- Returns
--   1   renewed
--   0   the lock is free; nothing was changed
--   -1  another owner holds it; nothing was changed
--   3   this node does not vote; nothing was changed
--   error LEASEHOLD  an argument is out of range; nothing was changed

local lock, voter = KEYS[1], KEYS[2]
local value, lease_ms = ARGV[1], tonumber(ARGV[2])

if not is_integer(lease_ms, 1) then
  return redis.error_reply('LEASEHOLD lease_ms is out of range')
end
if redis.call('HGET', voter, 'run') ~= run_id then
  return 3
end
local found = redis.call('GET', lock)
if not found then
  return 0
end
if found ~= value then
  return -1
end
redis.call('PEXPIRE', lock, lease_ms, 'GT')
return 1
