-- queue/tokens
--
-- Takes more tokens for a lock that an owner still holds, for those it is handed on to.
--
-- ARGV[1]  owner  string; 32 hex digits
-- ARGV[2]  count  integer from 1; how many
--
-- Returns
--   n  the first of them
--   0  it does not hold it; nothing was changed
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local owner, count = ARGV[1], tonumber(ARGV[2])

if not count or count < 1 or count % 1 ~= 0 then
  return redis.error_reply('LEASEHOLD count is out of its range')
end
local ends = redis.call('ZSCORE', holders, owner)
if not ends or tonumber(ends) <= now then
  return 0
end
local first = math.max(tonumber(redis.call('GET', counter) or 0), now) + 1
redis.call('SET', counter, digits(first + count - 1))
return first
