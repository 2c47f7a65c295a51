-- redisson/semaphore_release
--
-- Releases permits and wakes waiters, once per deduplication key; or cancels an
-- acquisition whose outcome is unknown.
--
-- KEYS[1]  available     integer; available permits; absent like 0
-- KEYS[2]  dedup         string; 1 acquired, 0 released or cancelled
-- KEYS[3]  channel       string; the waiters' channel
-- ARGV[1]  count         integer from 1; the number of permits
-- ARGV[2]  dedup_ttl_ms  integer from 1; lifetime of the deduplication key
-- ARGV[3]  publish       string; the publish command of this deployment
-- ARGV[4]  certain       string; 1 if they are held, 0 if only dedup can tell
--
-- Returns
--   1  released, now or by an earlier request
--   0  nothing to release

local available, dedup, channel = KEYS[1], KEYS[2], KEYS[3]
local count, dedup_ttl_ms, publish, certain = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local outcome = redis.call('GET', dedup)
-- A full server allows the SET only after a write that needs no memory.
redis.call('DEL', dedup)
redis.call('SET', dedup, 0, 'PX', dedup_ttl_ms)
if outcome == '0' then
  return 1
end
if not outcome and certain == '0' then
  return 0
end
redis.pcall(publish, channel, redis.call('INCRBY', available, count))
return 1
