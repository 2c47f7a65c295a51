-- token/raise
--
-- Raises the counter to the server's clock and takes the next token. Tokens
-- therefore keep rising after the counter was lost.
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
-- Changes nothing, since the counter does not expire. But a full server allows
-- the rest only after a write without new memory. It may not know XX.
redis.pcall('PEXPIRE', counter, '1000000000000', 'XX')
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local last = tonumber(redis.call('GET', counter) or 0)
local token = math.max(last + 1, now, floor)
redis.call('SET', counter, string.format('%.0f', token))
return token
