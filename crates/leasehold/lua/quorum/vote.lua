-- quorum/vote
--
-- Grants a lock on one node, under the token that the client proposes to all
-- nodes, if the lock is free and the token exceeds all granted before. A
-- request repeated by the same owner is granted again.
--
-- Preceded by quorum/prelude.
--
-- KEYS[1]  lock      string; see lua/README.md
-- KEYS[2]  votes     string; the highest token granted for this lock
-- KEYS[3]  voter     hash; whether this node votes, see quorum/rejoin
-- ARGV[1]  value     string; identifies the owner
-- ARGV[2]  lease_ms  integer from 1; milliseconds
-- ARGV[3]  token     integer; microseconds
--
-- Returns
--   list  1, token: granted under this token
--         0, remaining_ms, value: held by another owner
--         2, highest: the token does not exceed this one
--         3, 0: this node does not vote
--         4, now: the token is too far from this node's clock
--   error LEASEHOLD  an argument is out of range; nothing was changed

local lock, votes, voter = KEYS[1], KEYS[2], KEYS[3]
local value, lease_ms, token = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local proposed = tonumber(token)
if not is_integer(lease_ms, 1) or not is_integer(proposed, 1) then
  return redis.error_reply('LEASEHOLD an argument is out of range')
end
local known = redis.call('HMGET', voter, 'run', 'floor', 'highest')
if known[1] ~= run_id then
  return {3, 0}
end
local found = redis.call('GET', lock)
local highest = math.max(tonumber(redis.call('GET', votes) or 0), tonumber(known[2]))
if found == value then
  return {1, highest}
end
if found then
  return {0, redis.call('PTTL', lock), found}
end
-- Two days are well below the week after which `votes` expires. So no token
-- below an expired one is granted.
local now = clock()
if proposed > now + 60 * 1000000 or proposed < now - 2 * 86400 * 1000000 then
  return {4, now}
end
if proposed <= highest then
  return {2, highest}
end
redis.call('SET', lock, value, 'PX', lease_ms)
redis.call('SET', votes, token, 'EX', 7 * 86400)
if proposed > tonumber(known[3]) then
  redis.call('HSET', voter, 'highest', token)
end
return {1, proposed}
