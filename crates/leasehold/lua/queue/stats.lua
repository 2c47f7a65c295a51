-- queue/stats
--
-- Returns how much of the lock is in use. Changes nothing.
--
-- Preceded by queue/prelude.
--
-- Returns
--   list  used, capacity or 0, now, the number of waiters, the entry of a
--         holder, when its lease ends

local alone = state.alone
local from, count = '(' .. format('%d', now), 0
local waiter_count = call('ZCOUNT', heartbeats, from, '+inf')
if alone then
  return {state.used, state.capacity, now, waiter_count, alone.entry, alone.ends}
end
local held = call('ZRANGEBYSCORE', holders, from, '+inf', 'WITHSCORES')
for at = 1, #held, 2 do
  count = count + (entry(held[at]) or 0)
end
local holder = held[1] and call('HGET', entries, held[1]) or ''
return {count, state.capacity, now, waiter_count, holder, tonumber(held[2] or 0)}
