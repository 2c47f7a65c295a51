-- redisson/rw_set_hold_count
--
-- Writes the hold count of a reader or writer, if it still holds the lock. The
-- count is absolute, so the call can be repeated.
--
-- Preceded by redisson/rw_prelude.
--
-- ARGV[2]  holds  integer from 1; the hold count
--
-- Returns
--   1  written
--   0  not the owner; nothing was changed

local holds = tonumber(ARGV[2])

local before = tonumber(redis.call('HGET', lock, owner))
if not before then
  if redis.call('HEXISTS', lock, writer) == 0 then
    return 0
  end
  redis.call('HSET', lock, writer, holds)
  return 1
end
local remaining = redis.call('PTTL', hold(owner, 1))
if remaining <= 0 then
  return 0
end
redis.call('HSET', lock, owner, holds)
for number = before + 1, holds do
  redis.call('SET', hold(owner, number), 1, 'PX', remaining)
end
for number = holds + 1, before do
  redis.call('DEL', hold(owner, number))
end
return 1
