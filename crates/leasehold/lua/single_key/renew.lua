-- single_key/renew
--
-- Makes the lease of a lock last at least so long from now, if it is still ours. Never shortens it,
-- so that two renewals may overtake each other.
--
-- KEYS[1]  lock      string; see lua/README.md
-- ARGV[1]  mark      string; what the holder wrote when it acquired
-- ARGV[2]  lease_ms  integer from 1; milliseconds
--
-- Returns
--   1   renewed
--   0   nobody holds it; nothing was changed
--   -1  somebody else holds it; nothing was changed
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local lock = KEYS[1]
local mark, lease_ms = ARGV[1], tonumber(ARGV[2])

if not lease_ms or lease_ms < 1 or lease_ms % 1 ~= 0 then
  return redis.error_reply('LEASEHOLD lease_ms is out of its range')
end
local holder = redis.call('GET', lock)
if not holder then
  return 0
end
if holder ~= mark then
  return -1
end
if redis.call('PEXPIRE', lock, lease_ms, 'GT') == 0 then
  -- Written all the same: what replicas acknowledge is a write.
  local at = redis.call('PEXPIRETIME', lock)
  if at > 0 then
    redis.call('PEXPIREAT', lock, at)
  end
end
return 1
