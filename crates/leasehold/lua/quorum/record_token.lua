-- quorum/record_token
--
-- Records a token that the holder got from another server. Later votes for
-- this lock are above it.
--
-- Preceded by quorum/prelude.
--
-- KEYS[1]  votes  string; the highest token granted for this lock
-- KEYS[2]  voter  hash; whether this node votes, see quorum/rejoin
-- ARGV[1]  token  integer from 1; microseconds
--
-- Returns
--   1  this node grants only larger tokens
--   0  this node does not vote, or the token is too far ahead of the clock;
--      nothing was changed
--   error LEASEHOLD  an argument is out of range; nothing was changed

local votes, voter = KEYS[1], KEYS[2]
local token = ARGV[1]

local recorded = tonumber(token)
if not is_integer(recorded, 1) then
  return redis.error_reply('LEASEHOLD an argument is out of range')
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
