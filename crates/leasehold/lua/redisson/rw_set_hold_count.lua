-- redisson/rw_set_hold_count
--
-- Writes how often a reader or writer has entered, if it still holds the lock. The number, not a difference: it can
-- be repeated.
--
-- ARGV[2]  entries  integer from 1; how often
--
-- Returns
--   1  written
--   0  it is not ours; nothing was changed

local entries = tonumber(ARGV[2])

local before = tonumber(redis.call('HGET', lock, owner))
if not before then
  if redis.call('HEXISTS', lock, writer) == 0 then
    return 0
  end
  redis.call('HSET', lock, writer, entries)
  return 1
end
local left = redis.call('PTTL', entry(owner, 1))
if left <= 0 then
  return 0
end
redis.call('HSET', lock, owner, entries)
for number = before + 1, entries do
  redis.call('SET', entry(owner, number), 1, 'PX', left)
end
for number = entries + 1, before do
  redis.call('DEL', entry(owner, number))
end
return 1
