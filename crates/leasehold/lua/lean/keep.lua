-- lean/keep
--
-- Ends a holding but keeps the lock from others a while longer: if it is still ours, it expires
-- after exactly that time. The holder does not renew it any more.
--
-- KEYS[1]  lock     string; see lua/README.md
-- ARGV[1]  mark     string; what the holder wrote when it acquired
-- ARGV[2]  left_ms  integer from 1; milliseconds until it is free
--
-- Returns
--   1  it ends after that time
--   0  it was not ours; nothing was changed
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local lock = KEYS[1]
local mark, left_ms = ARGV[1], tonumber(ARGV[2])

if not left_ms or left_ms < 1 or left_ms % 1 ~= 0 then
  return redis.error_reply('LEASEHOLD left_ms is out of its range')
end
if redis.call('GET', lock) ~= mark then
  return 0
end
redis.call('PEXPIRE', lock, left_ms)
return 1
