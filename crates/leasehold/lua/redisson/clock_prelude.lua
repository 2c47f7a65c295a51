-- redisson/clock_prelude (prelude)
--
-- Reads the server's clock, in milliseconds. Precedes the scripts of fair locks
-- and of permits that expire. Redisson's own clients use their local clocks.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

