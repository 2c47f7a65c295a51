-- queue/look
--
-- Reports how the lock stands now. Changes nothing.
--
-- Returns
--   list  used, capacity or 0, now, the number of waiters, entry of a holder, when its lease ends

if alone then
  return {alone.weight, capacity, now, 0, alone.entry, alone.ends}
end
local from, count = '(' .. digits(now), 0
local held = call('ZRANGEBYSCORE', holders, from, '+inf', 'WITHSCORES')
for at = 1, #held, 2 do
  count = count + (entry(held[at]) or 0)
end
local shown = held[1] and call('HGET', entries, held[1]) or ''
return {count, capacity, now, call('ZCOUNT', heartbeats, from, '+inf'), shown, tonumber(held[2] or 0)}
