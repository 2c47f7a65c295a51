-- redisson/permits_renew
--
-- Makes the lease of permits last at least so long from now, if all are still held. Never shortens it.
--
-- KEYS[1]  held      sorted set; permits that are held, by when they expire
-- ARGV[1]  ids       string; the ids of the permits, 16 bytes each
-- ARGV[2]  lease_ms  integer from 1; milliseconds
--
-- Returns
--   1  renewed
--   0  one is not ours any more; nothing was changed

local held = KEYS[1]
local ids, lease_ms = ARGV[1], ARGV[2]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for at = 1, #ids, 16 do
  local expires = redis.call('ZSCORE', held, ids:sub(at, at + 15))
  if not expires or tonumber(expires) <= now then
    return 0
  end
end
for at = 1, #ids, 16 do
  redis.call('ZADD', held, 'GT', now + lease_ms, ids:sub(at, at + 15))
end
return 1
