-- redisson/fair_release
--
-- Releases a lock with any hold count, or keeps other clients out until
-- it expires, under a field that no renewal in flight matches. An owner that
-- waits leaves the queue instead. Wakes the next waiter when the lock is free.
--
-- Preceded by redisson/clock_prelude and redisson/fair_prelude.
--
-- KEYS[4]  channel      string; followed by a waiter's name
-- ARGV[3]  hold_for_ms  integer from 0; milliseconds until the lock is free
-- ARGV[4]  publish      string; the publish command of this deployment
-- ARGV[5]  released     string; the field after a release with hold_for_ms
--
-- Returns
--   1  the owner held it; it is free or expires, also if released so before
--   2  the owner waited
--   0  neither; nothing was changed

local channel = KEYS[4]
local hold_for_ms, publish, released = tonumber(ARGV[3]), ARGV[4], ARGV[5]

local function wake_next()
  local next = redis.call('LINDEX', queue, 0)
  if next then
    redis.pcall(publish, channel .. ':' .. next, '0')
  end
end

if redis.call('HEXISTS', lock, owner) == 1 then
  if hold_for_ms > 0 then
    -- A full server allows the HSET only after a write that needs no memory.
    redis.call('PEXPIRE', lock, hold_for_ms)
    redis.call('HSET', lock, released, 1)
    redis.call('HDEL', lock, owner)
  else
    redis.call('DEL', lock)
    wake_next()
  end
  return 1
end
if hold_for_ms > 0 and redis.call('HEXISTS', lock, released) == 1 then
  return 1
end
local ahead = redis.call('LPOS', queue, owner)
if not ahead then
  return 0
end
redis.call('LREM', queue, 1, owner)
redis.call('ZREM', timeouts, owner)
advance(ahead)
if ahead == 0 and redis.call('EXISTS', lock) == 0 then
  wake_next()
end
return 2
