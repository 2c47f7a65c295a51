-- quorum/renew
--
-- Makes the lease of a lock on one of several nodes last at least so long from now, if it is still ours.
--
-- KEYS[1]  lock      string; see lua/README.md
-- KEYS[2]  standing  hash; whether this node may vote, see quorum/rejoin
-- ARGV[1]  mark      string; what the holder wrote when it acquired
-- ARGV[2]  lease_ms  integer from 1; milliseconds
--
-- Returns
--   1   renewed
--   0   nobody holds it; nothing was changed
--   -1  somebody else holds it; nothing was changed
--   3   this node may not vote; nothing was changed
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local lock, standing = KEYS[1], KEYS[2]
local mark, lease_ms = ARGV[1], tonumber(ARGV[2])

if not lease_ms or lease_ms < 1 or lease_ms % 1 ~= 0 then
  return redis.error_reply('LEASEHOLD lease_ms is out of its range')
end
local run = redis.call('HGET', standing, 'run')
if run ~= string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') then
  return 3
end
local holder = redis.call('GET', lock)
if not holder then
  return 0
end
if holder ~= mark then
  return -1
end
redis.call('PEXPIRE', lock, lease_ms, 'GT')
return 1
