-- redisson/fair_enqueue
--
-- Acquires a lock that is free if the owner is next; otherwise enters the queue
-- or sends a heartbeat.
--
-- Preceded by redisson/clock_prelude and redisson/fair_prelude.
--
-- ARGV[3]  lease_ms  integer from 1; milliseconds
-- ARGV[4]  step      string; try (does not enter the queue), enter, or stay
--                    (creates no queue entry)
--
-- Returns
--   list  1, remaining_ms: the owner holds the lock
--   list  2, ahead, now_ms, remaining_ms, field: waits behind `ahead` owners;
--         the remaining lease and a field of the holder, if any
--   0     no queue entry

local lease_ms, step = tonumber(ARGV[3]), ARGV[4]

if redis.call('HEXISTS', lock, owner) == 1 then
  return {1, redis.call('PTTL', lock)}
end
if redis.call('EXISTS', lock) == 0 and (head == owner or (not head and step ~= 'stay')) then
  redis.call('LPOP', queue)
  redis.call('ZREM', timeouts, owner)
  advance(0)
  redis.call('HSET', lock, owner, 1)
  redis.call('PEXPIRE', lock, lease_ms)
  return {1, lease_ms}
end
local timeout = redis.call('ZSCORE', timeouts, owner)
if timeout and tonumber(timeout) < now + wait_ms then
  -- A full server allows the ZADD only after a write that needs no memory.
  redis.call('ZREM', timeouts, owner)
  redis.call('ZADD', timeouts, now + wait_ms, owner)
elseif not timeout and step == 'stay' then
  return 0
elseif not timeout and step == 'enter' then
  local newest = redis.call('LINDEX', queue, -1)
  local newest_timeout = newest and redis.call('ZSCORE', timeouts, newest)
  local base = newest_timeout and newest_timeout - now or redis.call('PTTL', lock)
  redis.call('ZADD', timeouts, base + wait_ms + now, owner)
  redis.call('RPUSH', queue, owner)
end
local ahead = redis.call('LPOS', queue, owner) or redis.call('LLEN', queue)
return {2, ahead, now, redis.call('PTTL', lock), redis.call('HRANDFIELD', lock)}
