-- redisson/rw_renew
--
-- Extends the lease of a reader or writer to at least the requested length
-- from now, if it still holds the lock. Never shortens it.
--
-- Preceded by redisson/renew_prelude and redisson/rw_prelude.
--
-- ARGV[2]  lease_ms  integer from 1; milliseconds
--
-- Returns
--   1  renewed
--   0  not the owner; nothing was changed

local lease_ms = ARGV[2]

local holds = redis.call('HGET', lock, owner)
if holds then
  -- A reader whose own key has expired has lost the lock, even while other
  -- readers keep the hash alive.
  if redis.call('EXISTS', hold(owner, 1)) == 0 then
    return 0
  end
  for number = 1, holds do
    redis.call('PEXPIRE', hold(owner, number), lease_ms, 'GT')
  end
elseif redis.call('HEXISTS', lock, writer) == 0 then
  return 0
end
extend_ttl(lock, lease_ms)
return 1
