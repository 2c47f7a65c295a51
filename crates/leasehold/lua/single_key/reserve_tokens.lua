-- single_key/reserve_tokens
--
-- Reserves tokens for local hand-offs of a lock that the caller owns. The
-- counter never passes the server's clock: a counter that was lost restarts at
-- the clock, above every token issued before.
--
-- KEYS[1]  lock     string; see lua/README.md
-- KEYS[2]  counter  string; the largest token issued so far
-- ARGV[1]  value    string; written by the owner when it acquired
-- ARGV[2]  count    integer from 1; the number of tokens requested
-- ARGV[3]  own      integer; the owner's token, below all reserved tokens
--
-- Returns
--   list  first, count: consecutive tokens; fewer where the clock allows fewer
--   0     not the owner, or the clock allows none; nothing was changed
--   error LEASEHOLD  an argument is out of range; nothing was changed

local lock, counter = KEYS[1], KEYS[2]
local value, count, own = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

if not count or count < 1 or count % 1 ~= 0 or not own or own < 0 or own >= 2 ^ 53 then
  return redis.error_reply('LEASEHOLD an argument is out of range')
end
if redis.call('GET', lock) ~= value then
  return 0
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local last = math.max(tonumber(redis.call('GET', counter) or 0), own)
local reserved = math.min(count, now - last)
if reserved < 1 then
  return 0
end
redis.call('SET', counter, string.format('%.0f', last + reserved))
return {last + 1, reserved}
