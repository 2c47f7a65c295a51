-- token/raise
--
-- Takes a token after raising the counter to the server's clock, so that tokens go on rising when
-- the counter was lost. Needed only after a connection was made or data was lost; otherwise INCR.
--
-- KEYS[1]  counter  string; the largest token given out so far
-- ARGV[1]  floor    integer; microseconds; the token must not be below it, even if the clock is
--
-- Returns
--   n > 0  the token: larger than all before, and below neither clock nor floor
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local counter = KEYS[1]
local floor = tonumber(ARGV[1])

if not floor or floor < 0 or floor >= 2 ^ 53 then
  return redis.error_reply('LEASEHOLD floor is out of its range')
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local last = tonumber(redis.call('GET', counter) or 0)
local token = math.max(last + 1, now, floor)
redis.call('SET', counter, string.format('%.0f', token))
return token
