-- redisson/rw_renew
--
-- Makes a reader's or writer's lease last at least so long from now, if it is still held. Never shortens it.
--
-- ARGV[2]  lease_ms  integer from 1; milliseconds
--
-- Returns
--   1  renewed
--   0  it is not ours any more; nothing was changed

local lease_ms = ARGV[2]

local entries = redis.call('HGET', lock, owner)
if entries then
  -- A reader whose own key has expired is nobody's reader, even while others keep the hash alive.
  if redis.call('EXISTS', entry(owner, 1)) == 0 then
    return 0
  end
  for number = 1, entries do
    redis.call('PEXPIRE', entry(owner, number), lease_ms, 'GT')
  end
elseif redis.call('HEXISTS', lock, writer) == 0 then
  return 0
end
if redis.call('PEXPIRE', lock, lease_ms, 'GT') == 0 then
  -- Written all the same: what replicas acknowledge is a write.
  local at = redis.call('PEXPIRETIME', lock)
  if at > 0 then
    redis.call('PEXPIREAT', lock, at)
  end
end
return 1
