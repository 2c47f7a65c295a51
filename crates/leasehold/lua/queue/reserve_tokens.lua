-- queue/reserve_tokens
--
-- Takes more tokens for a lock that an owner still holds, for those it is handed on to. The counter does not pass
-- the server's clock by that: a counter that was lost starts again at the clock, above all tokens given before.
--
-- ARGV[1]  owner  string; 32 hex digits
-- ARGV[2]  count  integer from 1; how many are wanted
-- ARGV[3]  own    integer; the holder's token, below all of them even if the counter was lost
--
-- Returns
--   list  the first of them, how many there are: as many as wanted, or as the clock allows
--   0     it does not hold it, or the clock allows none; nothing was changed
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local owner, count, own = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

if not in_range(count or 0, (own or -1) + 1) then
  return redis.error_reply('LEASEHOLD an argument is out of its range')
end
local ends = sole and sole.owner == owner and sole.ends or not sole and call('ZSCORE', holders, owner)
if not ends or tonumber(ends) <= now then
  return 0
end
local before = max(tonumber(call('GET', counter) or 0), own)
local given = min(count, now - before)
if given < 1 then
  return 0
end
call('SET', counter, digits(before + given))
return {before + 1, given}
