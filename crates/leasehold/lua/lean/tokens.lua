-- lean/tokens
--
-- Takes more tokens for a lock that is still ours, for those it is handed on to.
--
-- KEYS[1]  lock     string; see lua/README.md
-- KEYS[2]  counter  string; the largest token given out so far
-- ARGV[1]  mark     string; what the holder wrote when it acquired
-- ARGV[2]  count    integer from 1; how many
--
-- Returns
--   n  the first of them
--   0  it is not ours; nothing was changed
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local lock, counter = KEYS[1], KEYS[2]
local mark, count = ARGV[1], tonumber(ARGV[2])

if not count or count < 1 or count % 1 ~= 0 then
  return redis.error_reply('LEASEHOLD count is out of its range')
end
if redis.call('GET', lock) ~= mark then
  return 0
end
local last = tonumber(redis.call('GET', counter) or 0)
redis.call('SET', counter, string.format('%.0f', last + count))
return last + 1
