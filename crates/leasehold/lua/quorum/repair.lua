-- quorum/repair
--
-- Puts a lock that a majority of the nodes has on one that missed it, if it is free there. The holder asks
-- for it only while its lease is certain.
--
-- KEYS[1]  lock      string; see lua/README.md
-- KEYS[2]  votes     string; the highest token granted for this lock
-- KEYS[3]  standing  hash; whether this node may vote, see quorum/rejoin
-- ARGV[1]  mark      string; what the holder wrote when it acquired
-- ARGV[2]  left_ms   integer from 1; milliseconds that the lease lasts still
-- ARGV[3]  token     integer; the holder's
--
-- Returns
--   1  it is here, now or already
--   0  somebody else's is here, or this node may not vote; nothing was changed
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local lock, votes, standing = KEYS[1], KEYS[2], KEYS[3]
local mark, left_ms, token = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local number = tonumber(token)

if not left_ms or left_ms < 1 or left_ms % 1 ~= 0 or not number or number < 1 or number >= 2 ^ 53 then
  return redis.error_reply('LEASEHOLD an argument is out of its range')
end
local known = redis.call('HMGET', standing, 'run', 'highest')
if known[1] ~= string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') then
  return 0
end
redis.call('SET', lock, mark, 'NX', 'PX', left_ms)
if redis.call('GET', lock) ~= mark then
  return 0
end
if number > tonumber(redis.call('GET', votes) or 0) then
  redis.call('SET', votes, token, 'EX', 7 * 86400)
end
if number > tonumber(known[2]) then
  redis.call('HSET', standing, 'highest', token)
end
return 1
