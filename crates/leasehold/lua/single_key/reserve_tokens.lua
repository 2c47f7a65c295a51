-- single_key/reserve_tokens
--
-- Takes more tokens for a lock that is still ours, for those it is handed on to. The counter does not pass the
-- server's clock by that: a counter that was lost starts again at the clock, above all tokens given before.
--
-- KEYS[1]  lock     string; see lua/README.md
-- KEYS[2]  counter  string; the largest token given out so far
-- ARGV[1]  mark     string; what the holder wrote when it acquired
-- ARGV[2]  count    integer from 1; how many are wanted
-- ARGV[3]  own      integer; the holder's token, below all of them even if the counter was lost
--
-- Returns
--   list  the first of them, how many there are: as many as wanted, or as the clock allows
--   0     it is not ours, or the clock allows none; nothing was changed
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local lock, counter = KEYS[1], KEYS[2]
local mark, count, own = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

if not count or count < 1 or count % 1 ~= 0 or not own or own < 0 or own >= 2 ^ 53 then
  return redis.error_reply('LEASEHOLD an argument is out of its range')
end
if redis.call('GET', lock) ~= mark then
  return 0
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local last = math.max(tonumber(redis.call('GET', counter) or 0), own)
local given = math.min(count, now - last)
if given < 1 then
  return 0
end
redis.call('SET', counter, string.format('%.0f', last + given))
return {last + 1, given}
