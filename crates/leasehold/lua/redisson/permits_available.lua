-- redisson/permits_available
--
-- Says how many permits could be taken now, without changing anything.
--
-- KEYS[1]  available  integer; how many there are; absent like none
-- KEYS[2]  held       sorted set; permits that are held, by when they expire
--
-- Returns
--   n  so many, those that have expired included

local available, held = KEYS[1], KEYS[2]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return tonumber(redis.call('GET', available) or 0) + redis.call('ZCOUNT', held, 0, now)
