-- redisson/fair_prelude (prelude)
--
-- Removes expired waiters from the head of a fair lock's queue. Preceded by
-- redisson/clock_prelude; precedes the scripts of fair locks.
--
-- KEYS[1]  lock      hash; owner -> hold count
-- KEYS[2]  queue     list; waiters, the next one first
-- KEYS[3]  timeouts  sorted set; waiter -> when it expires
-- ARGV[1]  owner     string; client and thread, in Redisson's notation
-- ARGV[2]  wait_ms   integer from 1; how much longer each waiter may take than
--                    the one before it

local lock, queue, timeouts = KEYS[1], KEYS[2], KEYS[3]
local owner, wait_ms = ARGV[1], tonumber(ARGV[2])

local head = redis.call('LINDEX', queue, 0)
while head do
  local timeout = redis.call('ZSCORE', timeouts, head)
  if timeout and tonumber(timeout) > now then
    break
  end
  redis.call('ZREM', timeouts, head)
  redis.call('LPOP', queue)
  head = redis.call('LINDEX', queue, 0)
end

-- Moves up the timeouts behind the first `ahead` waiters: a waiter has left.
local function advance(ahead)
  for _, waiter in ipairs(redis.call('LRANGE', queue, ahead, -1)) do
    redis.call('ZINCRBY', timeouts, -wait_ms, waiter)
  end
end

