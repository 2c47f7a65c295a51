-- single_key/release_after
--
-- Ends a holding but keeps the lock from others a while longer: if it is still ours, it expires
-- after exactly that time, under a mark that no renewal has: one under way does not prolong it.
--
-- KEYS[1]  lock     string; see lua/README.md
-- ARGV[1]  mark     string; what the holder wrote when it acquired
-- ARGV[2]  left_ms  integer from 1; milliseconds until it is free
-- ARGV[3]  kept     string; the mark from now on
--
-- Returns
--   1  it ends after that time, or was so released before
--   0  it was not ours; nothing was changed
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local lock = KEYS[1]
local mark, left_ms, kept = ARGV[1], tonumber(ARGV[2]), ARGV[3]

if not left_ms or left_ms < 1 or left_ms % 1 ~= 0 then
  return redis.error_reply('LEASEHOLD left_ms is out of its range')
end
local holder = redis.call('GET', lock)
if holder == kept then
  return 1
end
if holder ~= mark then
  return 0
end
-- A write that needs no memory comes first: what follows is then allowed on a full server.
redis.call('PEXPIRE', lock, left_ms)
redis.call('SET', lock, kept, 'KEEPTTL')
return 1
