-- quorum/record_token
--
-- Records a token that the holder got from another server. Later votes for
-- this lock are above it.
--
-- Preceded by quorum/prelude.
--
-- KEYS[1]  lock   string; see lua/README.md
-- KEYS[2]  votes  string; the highest token granted for this lock
-- KEYS[3]  voter  hash; whether this node votes, see quorum/rejoin
-- ARGV[1]  value  string; written by the owner when it acquired
-- ARGV[2]  token  integer from 1; microseconds
--
-- Returns
--   1  this node grants only larger tokens
--   0  the owner does not hold the lock here, this node does not vote, or the
--      token is too far ahead of the clock; nothing was changed
--   error LEASEHOLD  an argument is out of range; nothing was changed

local lock, votes, voter = KEYS[1], KEYS[2], KEYS[3]
local value, token = ARGV[1], ARGV[2]

local recorded = tonumber(token)
if not is_integer(recorded, 1) then
  return redis.error_reply('LEASEHOLD an argument is out of range')
end
-- The node's vote for another owner can still count, once this one releases.
if redis.call('GET', lock) ~= value then
  return 0
end
local known = redis.call('HMGET', voter, 'run', 'highest')
-- A vote above such a token would be refused until the clock has caught up.
if known[1] ~= run_id or recorded > clock() + 60 * 1000000 then
  return 0
end
if recorded > tonumber(redis.call('GET', votes) or 0) then
  redis.call('SET', votes, token, 'EX', 7 * 86400)
end
if recorded > tonumber(known[2]) then
  redis.call('HSET', voter, 'highest', token)
end
return 1
