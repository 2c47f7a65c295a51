-- redisson/permits_renew
--
-- Extends the lease of permits to at least the requested length from now, if
-- the caller owns all of them. Never shortens it. Always writes, so that
-- replicas can acknowledge it.
--
-- Preceded by redisson/clock_prelude.
--
-- KEYS[1]  held      sorted set; permit id -> when it expires
-- ARGV[1]  ids       string; the ids of the permits, 16 bytes each
-- ARGV[2]  lease_ms  integer from 1; milliseconds
--
-- Returns
--   1  renewed
--   0  at least one has expired; nothing was changed

local held = KEYS[1]
local ids, lease_ms = ARGV[1], ARGV[2]

for at = 1, #ids, 16 do
  local expires = redis.call('ZSCORE', held, ids:sub(at, at + 15))
  if not expires or tonumber(expires) <= now then
    return 0
  end
end
local ttl = redis.call('PTTL', held)
for at = 1, #ids, 16 do
  local id = ids:sub(at, at + 15)
  local expires = math.max(tonumber(redis.call('ZSCORE', held, id)), now + lease_ms)
  -- A full server allows the ZADD only after a write that needs no memory.
  redis.call('ZREM', held, id)
  redis.call('ZADD', held, expires, id)
end
-- The server deletes a set, and its expiry, with the last member.
if ttl > 0 then
  redis.call('PEXPIRE', held, ttl)
end
return 1
