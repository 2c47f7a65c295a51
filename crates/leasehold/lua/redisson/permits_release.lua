-- redisson/permits_release
--
-- Releases permits and wakes waiters; or keeps other clients out until they
-- expire, under ids that no renewal in flight matches.
--
-- Preceded by redisson/clock_prelude.
--
-- KEYS[1]  available    integer; available permits
-- KEYS[2]  held         sorted set; permit id -> when it expires
-- KEYS[3]  channel      string; the waiters' channel
-- ARGV[1]  ids          string; the ids of the permits, 16 bytes each
-- ARGV[2]  hold_for_ms  integer from 0; milliseconds until they are free
-- ARGV[3]  publish      string; the publish command of this deployment
-- ARGV[4]  released     string; the ids after a release with hold_for_ms
--
-- Returns
--   1  all were owned, and are free or expire, also if released so before
--   0  at least one had expired; the others are free

local available, held, channel = KEYS[1], KEYS[2], KEYS[3]
local ids, hold_for_ms, publish, released = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

local freed, expired = 0, 0
local ttl = redis.call('PTTL', held)
for at = 1, #ids, 16 do
  local id, released_id = ids:sub(at, at + 15), released:sub(at, at + 15)
  local expires = redis.call('ZSCORE', held, id)
  expired = expired + ((expires and tonumber(expires) <= now) and 1 or 0)
  if hold_for_ms == 0 then
    freed = freed + redis.call('ZREM', held, id)
  elseif expires then
    -- A full server allows the ZADD only after a write that needs no memory.
    redis.call('ZREM', held, id)
    redis.call('ZADD', held, now + hold_for_ms, released_id)
    freed = freed + 1
  elseif redis.call('ZSCORE', held, released_id) then
    freed = freed + 1
  end
end
-- The server deletes a set, and its expiry, with the last member.
if hold_for_ms > 0 and ttl > 0 then
  redis.call('PEXPIRE', held, ttl)
end
if hold_for_ms == 0 and freed > 0 then
  redis.pcall(publish, channel, redis.call('INCRBY', available, freed))
end
if freed < #ids / 16 or expired > 0 then
  return 0
end
return 1
