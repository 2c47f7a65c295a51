-- quorum/vote
--
-- Grants a lock on one of several independent nodes, under the token that is proposed to all of them, if
-- the lock is free here and the token is higher than all that were granted before. Repeated by the same
-- holder it grants again.
--
-- KEYS[1]  lock      string; see lua/README.md
-- KEYS[2]  votes     string; the highest token granted for this lock, forgotten after a week
-- KEYS[3]  standing  hash; whether this node may vote, see quorum/rejoin
-- ARGV[1]  mark      string; who asks
-- ARGV[2]  lease_ms  integer from 1; milliseconds
-- ARGV[3]  token     integer; microseconds
--
-- Returns
--   list  1, token: granted under this token
--         0, milliseconds left, mark: held by another
--         2, highest: the token is not above that
--         3, 0: this node may not vote
--         4, now: the token is further from this node's clock than clocks may be apart
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local lock, votes, standing = KEYS[1], KEYS[2], KEYS[3]
local mark, lease_ms, token = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local number = tonumber(token)

if not lease_ms or lease_ms < 1 or lease_ms % 1 ~= 0 or not number or number < 1 or number >= 2 ^ 53 then
  return redis.error_reply('LEASEHOLD an argument is out of its range')
end
local known = redis.call('HMGET', standing, 'run', 'floor', 'highest')
if known[1] ~= string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') then
  return {3, 0}
end
local holder = redis.call('GET', lock)
local highest = math.max(tonumber(redis.call('GET', votes) or 0), tonumber(known[2]))
if holder == mark then
  return {1, highest}
end
if holder then
  return {0, redis.call('PTTL', lock), holder}
end
-- Two days: well below the week after which votes are forgotten, so that none below is granted later.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if number > now + 60 * 1000000 or number < now - 2 * 86400 * 1000000 then
  return {4, now}
end
if number <= highest then
  return {2, highest}
end
redis.call('SET', lock, mark, 'PX', lease_ms)
redis.call('SET', votes, token, 'EX', 7 * 86400)
if number > tonumber(known[3]) then
  redis.call('HSET', standing, 'highest', token)
end
return {1, number}
