-- redisson/write_acquire
--
-- Acquires a read-write lock for writing if it is free. Repeated by the same
-- owner, counts no second hold.
--
-- KEYS[1]  lock      hash; mode, and a field per reader or for the writer
-- ARGV[1]  writer    string; the owner in Redisson's notation for a writer
-- ARGV[2]  lease_ms  integer from 1; milliseconds
--
-- Returns
--   1     the owner holds the lock
--   list  remaining_ms, field, field: held; fields of the hash

local lock = KEYS[1]
local writer, lease_ms = ARGV[1], ARGV[2]

if redis.call('EXISTS', lock) == 0 then
  redis.call('HSET', lock, 'mode', 'write', writer, 1)
  redis.call('PEXPIRE', lock, lease_ms)
  return 1
end
if redis.call('HEXISTS', lock, writer) == 1 then
  return 1
end
return {redis.call('PTTL', lock), unpack(redis.call('HRANDFIELD', lock, 2))}
