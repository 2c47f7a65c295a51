-- redisson/semaphore_acquire
--
-- Acquires permits if enough are available. Repeated under the same
-- deduplication key, acquires no more; after a cancel, none.
--
-- KEYS[1]  available     integer; available permits; absent like 0
-- KEYS[2]  dedup         string; 1 acquired, 0 released or cancelled
-- ARGV[1]  wanted        integer from 1; the number of permits
-- ARGV[2]  dedup_ttl_ms  integer from 1; lifetime of the deduplication key
--
-- Returns
--   1  acquired, now or by an earlier request
--   0  too few are available, or cancelled; nothing was changed

local available, dedup = KEYS[1], KEYS[2]
local wanted, dedup_ttl_ms = tonumber(ARGV[1]), ARGV[2]

local outcome = redis.call('GET', dedup)
if outcome == '1' then
  return 1
end
local count = redis.call('GET', available)
if outcome or not count or tonumber(count) < wanted then
  return 0
end
redis.call('SET', dedup, 1, 'PX', dedup_ttl_ms)
redis.call('DECRBY', available, wanted)
return 1
