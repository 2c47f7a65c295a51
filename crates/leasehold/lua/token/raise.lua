-- token/raise
--
-- Raises the counter to the server's clock and takes the next token. Tokens
-- therefore keep rising after the counter was lost. Needed when a token is
-- below the clock that the client read at connect, and for a token that
-- replicas acknowledge; otherwise INCR suffices.
--
-- KEYS[1]  counter  string; the largest token issued so far
-- ARGV[1]  floor    integer; microseconds; a lower bound, even above the clock
--
-- Returns
--   n > 0  the token: above all earlier ones, below neither clock nor floor
--   error LEASEHOLD  an argument is out of range; nothing was changed

local counter = KEYS[1]
local floor = tonumber(ARGV[1])

if not floor or floor < 0 or floor >= 2 ^ 53 then
  return redis.error_reply('LEASEHOLD floor is out of range')
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local last = tonumber(redis.call('GET', counter) or 0)
local token = math.max(last + 1, now, floor)
redis.call('SET', counter, string.format('%.0f', token))
return token
