-- redisson/fair_release
--
-- Gives a lock back if it is ours, however often it was entered, or leaves it to end by itself; else gives up a
-- place in line. Calls the next in line when the lock is free for it.
--
-- KEYS[4]  channel  string; where each waiter listens below its own name
-- ARGV[3]  keep_ms  integer from 0; milliseconds until it is free
-- ARGV[4]  publish  string; the command by which this fleet announces
--
-- Returns
--   1  it was ours, and is free or will be
--   2  it had a place in line
--   0  neither; nothing was changed

local channel = KEYS[4]
local keep_ms, publish = tonumber(ARGV[3]), ARGV[4]

local function call_next()
  local next = redis.call('LINDEX', line, 0)
  if next then
    redis.pcall(publish, channel .. ':' .. next, '0')
  end
end

if redis.call('HEXISTS', lock, owner) == 1 then
  if keep_ms > 0 then
    redis.call('PEXPIRE', lock, keep_ms)
  else
    redis.call('DEL', lock)
    call_next()
  end
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
