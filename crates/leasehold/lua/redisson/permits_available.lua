-- redisson/permits_available
--
-- Returns how many permits could be acquired now. Changes nothing.
--
-- Preceded by redisson/clock_prelude.
--
-- KEYS[1]  available  integer; available permits; absent like 0
-- KEYS[2]  held       sorted set; permit id -> when it expires
--
-- Returns
--   n  the number of permits, including expired ones

local available, held = KEYS[1], KEYS[2]

return tonumber(redis.call('GET', available) or 0) + redis.call('ZCOUNT', held, 0, now)
