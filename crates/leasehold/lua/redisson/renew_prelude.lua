-- redisson/renew_prelude (prelude)
--
-- Precedes redisson/lock_renew and redisson/rw_renew.

-- Extends the time to live of a key to at least `lease_ms`, and never shortens
-- it. A key without expiry stays without one.
local function extend_ttl(key, lease_ms)
  if redis.call('PEXPIRE', key, lease_ms, 'GT') == 0 then
    -- Writes the same expiry again: replicas acknowledge writes only.
    local expiry = redis.call('PEXPIRETIME', key)
    if expiry > 0 then
      redis.call('PEXPIREAT', key, expiry)
    end
  end
end

