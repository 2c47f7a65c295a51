-- queue/look
--
-- Says how the lock stands now. Changes nothing.
--
-- Returns
--   list  used, capacity or 0, now, how many wait, entry of a holder, when its lease ends

local held, count = redis.call('ZRANGEBYSCORE', holders, '(' .. digits(now), '+inf', 'WITHSCORES'), 0
for at = 1, #held, 2 do
  count = count + tonumber((entry(held[at])))
end
local waiting = redis.call('ZCOUNT', alive, '(' .. digits(now), '+inf')
local shown = held[1] and redis.call('HGET', lock, held[1]) or ''
return {count, capacity, now, waiting, shown, tonumber(held[2] or 0)}
