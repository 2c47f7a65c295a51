-- redisson/read_acquire
--
-- Acquires a read-write lock for reading unless a writer holds it. Each hold of
-- a reader has a key of its own, which expires with the reader's lease.
--
-- KEYS[1]  lock      hash; mode, and a field per reader or for the writer
-- KEYS[2]  holds     string; prefix of the keys of this owner's holds
-- ARGV[1]  owner     string; client and thread, in Redisson's notation
-- ARGV[2]  lease_ms  integer from 1; milliseconds
--
-- Returns
--   1     the owner holds the lock
--   list  remaining_ms, field, field: a writer holds it; fields of the hash

local lock, holds = KEYS[1], KEYS[2]
local owner, lease_ms = ARGV[1], ARGV[2]

local mode = redis.call('HGET', lock, 'mode')
if mode == 'write' or (not mode and redis.call('EXISTS', lock) == 1) then
  return {redis.call('PTTL', lock), unpack(redis.call('HRANDFIELD', lock, 2))}
end
if redis.call('HEXISTS', lock, owner) == 0 then
  redis.call('HSET', lock, 'mode', 'read', owner, 1)
  redis.call('SET', holds .. ':1', 1, 'PX', lease_ms)
  if not mode then
    redis.call('PEXPIRE', lock, lease_ms)
  else
    redis.call('PEXPIRE', lock, lease_ms, 'GT')
  end
end
return 1
