-- redisson/fair_release
--
-- Releases a lock if the owner holds it, however often it was entered, or keeps it from others until it
-- ends by itself, under a field that no renewal under way has; else gives up a queue entry. Calls the
-- next waiter when the lock is free for it.
--
-- KEYS[4]  channel  string; where each waiter listens below its own name
-- ARGV[3]  keep_ms  integer from 0; milliseconds until it is free
-- ARGV[4]  publish  string; the command by which this fleet announces
-- ARGV[5]  kept     string; the field in place of the owner's while the lock is kept
--
-- Returns
--   1  the owner held it, and it is free or will be; also where it was so released before
--   2  it had a place in line
--   0  neither; nothing was changed

local channel = KEYS[4]
local keep_ms, publish, kept = tonumber(ARGV[3]), ARGV[4], ARGV[5]

local function call_next()
  local next = redis.call('LINDEX', line, 0)
  if next then
    redis.pcall(publish, channel .. ':' .. next, '0')
  end
end

if redis.call('HEXISTS', lock, owner) == 1 then
  if keep_ms > 0 then
    -- A write that needs no memory comes first: what follows is then allowed on a full server.
    redis.call('PEXPIRE', lock, keep_ms)
    redis.call('HSET', lock, kept, 1)
    redis.call('HDEL', lock, owner)
  else
    redis.call('DEL', lock)
    call_next()
  end
  return 1
end
if keep_ms > 0 and redis.call('HEXISTS', lock, kept) == 1 then
  return 1
end
local ahead = redis.call('LPOS', line, owner)
if not ahead then
  return 0
end
redis.call('LREM', line, 1, owner)
redis.call('ZREM', timeouts, owner)
advance(ahead)
if ahead == 0 and redis.call('EXISTS', lock) == 0 then
  call_next()
end
return 2
