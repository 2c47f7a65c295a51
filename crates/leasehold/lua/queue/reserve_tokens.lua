-- queue/reserve_tokens
--
-- Reserves tokens for local hand-offs of a lock that an owner holds. The
-- counter never passes the server's clock: a counter that was lost restarts at
-- the clock, above every token issued before.
--
-- Preceded by queue/prelude.
--
-- ARGV[1]  owner  string; 32 hex digits
-- ARGV[2]  count  integer from 1; the number of tokens requested
-- ARGV[3]  own    integer; the owner's token, below all reserved tokens
--
-- Returns
--   list  first, count: consecutive tokens; fewer where the clock allows fewer
--   0     not a holder, or the clock allows none; nothing was changed
--   error LEASEHOLD  an argument is out of range; nothing was changed

local owner, count, own = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

if not (in_range(count, 1) and in_range(own, 0)) then
  return redis.error_reply('LEASEHOLD an argument is out of range')
end
local alone = state.alone
local ends
if alone then
  ends = alone.owner == owner and alone.ends
else
  ends = tonumber(call('ZSCORE', holders, owner) or 0)
end
if not ends or ends <= now then
  return 0
end
local last = max(tonumber(call('GET', counter) or 0), own)
local reserved = min(count, now - last)
if reserved < 1 then
  return 0
end
call('SET', counter, format('%d', last + reserved))
return {last + 1, reserved}
