-- redisson/permits_acquire
--
-- Acquires permits that expire, if enough are available. Permits whose lease
-- has ended count as available.
--
-- Preceded by redisson/clock_prelude.
--
-- KEYS[1]  available  integer; available permits; absent like 0
-- KEYS[2]  held       sorted set; permit id -> when it expires
-- KEYS[3]  channel    string; the waiters' channel
-- ARGV[1]  ids        string; the ids of the permits, 16 bytes each
-- ARGV[2]  lease_ms   integer from 1; milliseconds
-- ARGV[3]  publish    string; the publish command of this deployment
--
-- Returns
--   1  acquired, now or by an earlier request
--   0  too few are available

local available, held, channel = KEYS[1], KEYS[2], KEYS[3]
local ids, lease_ms, publish = ARGV[1], ARGV[2], ARGV[3]

local wanted = #ids / 16
if redis.call('ZSCORE', held, ids:sub(1, 16)) then
  return 1
end
local expired = redis.call('ZRANGEBYSCORE', held, 0, now, 'LIMIT', 0, wanted)
if #expired > 0 then
  redis.call('ZREM', held, unpack(expired))
  local count = redis.call('INCRBY', available, #expired)
  if count > 0 then
    redis.pcall(publish, channel, count)
  end
end
if tonumber(redis.call('GET', available) or 0) < wanted then
  return 0
end
redis.call('DECRBY', available, wanted)
for at = 1, #ids, 16 do
  redis.call('ZADD', held, now + lease_ms, ids:sub(at, at + 15))
end
local ttl = redis.call('PTTL', available)
if ttl > 0 then
  redis.call('PEXPIRE', held, ttl)
end
return 1
