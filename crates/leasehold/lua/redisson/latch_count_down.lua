-- redisson/latch_count_down
--
-- Decrements a latch, once per deduplication key, and opens it at zero.
--
-- KEYS[1]  latch         integer; the remaining count; absent when it is open
-- KEYS[2]  dedup         string; exists if this count-down was executed
-- KEYS[3]  channel       string; the waiters' channel
-- ARGV[1]  dedup_ttl_ms  integer from 1; lifetime of the deduplication key
-- ARGV[2]  publish       string; the publish command of this deployment
--
-- Returns
--   n  the remaining count
--   0  the latch is open

local latch, dedup, channel = KEYS[1], KEYS[2], KEYS[3]
local dedup_ttl_ms, publish = ARGV[1], ARGV[2]

local remaining = tonumber(redis.call('GET', latch) or 0)
if remaining == 0 or redis.call('EXISTS', dedup) == 1 then
  return remaining
end
redis.call('SET', dedup, 1, 'PX', dedup_ttl_ms)
if remaining > 1 then
  return redis.call('DECR', latch)
end
redis.call('DEL', latch)
redis.pcall(publish, channel, '0')
return 0
