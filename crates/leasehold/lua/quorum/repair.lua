-- quorum/repair
--
-- Writes a lock that a majority holds to a node that misses it, if it is free
-- there. The holder asks for this only while its lease is certain.
--
-- Preceded by quorum/prelude.
--
-- KEYS[1]  lock          string; see lua/README.md
-- KEYS[2]  votes         string; the highest token granted for this lock
-- KEYS[3]  voter         hash; whether this node votes, see quorum/rejoin
-- ARGV[1]  value         string; written by the owner when it acquired
-- ARGV[2]  remaining_ms  integer from 1; remaining milliseconds of the lease
-- ARGV[3]  token         integer; the owner's token
--
-- Returns
--   1  the node has the lock, now or already
--   0  another owner holds it, or this node does not vote; nothing was changed
--   error LEASEHOLD  an argument is out of range; nothing was changed

local lock, votes, voter = KEYS[1], KEYS[2], KEYS[3]
local value, remaining_ms, token = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local granted = tonumber(token)
if not is_integer(remaining_ms, 1) or not is_integer(granted, 1) then
  return redis.error_reply('LEASEHOLD an argument is out of range')
end
local known = redis.call('HMGET', voter, 'run', 'highest')
if known[1] ~= run_id then
  return 0
end
redis.call('SET', lock, value, 'NX', 'PX', remaining_ms)
if redis.call('GET', lock) ~= value then
  return 0
end
if granted > tonumber(redis.call('GET', votes) or 0) then
  redis.call('SET', votes, token, 'EX', 7 * 86400)
end
if granted > tonumber(known[2]) then
  redis.call('HSET', voter, 'highest', token)
end
return 1
