-- queue/stats
--
-- Reports how the lock stands now. Changes nothing.
--
-- Returns
--   list  used, capacity or 0, now, the number of waiters, entry of a holder, when its lease ends

local from, count = '(' .. digits(now), 0
local waits = call('ZCOUNT', heartbeats, from, '+inf')
if sole and sole.ends > now then
  return {used, capacity, now, waits, sole.entry, sole.ends}
end
local held = sole and {} or call('ZRANGEBYSCORE', holders, from, '+inf', 'WITHSCORES')
for at = 1, #held, 2 do
  count = count + (entry(held[at]) or 0)
end
local shown = held[1] and call('HGET', entries, held[1]) or ''
return {count, capacity, now, waits, shown, tonumber(held[2] or 0)}
