-- redisson/rw_release
--
-- Releases what a reader or writer holds, with any hold count; or keeps
-- other clients out until it expires, under names that no renewal in flight
-- matches. Wakes the waiters when the lock is free.
--
-- Preceded by redisson/rw_prelude.
--
-- KEYS[3]  channel      string; the waiters' channel
-- ARGV[2]  hold_for_ms  integer from 0; milliseconds until the lock is free
-- ARGV[3]  publish      string; the publish command of this deployment
-- ARGV[4]  released     string; the owner after a release with hold_for_ms
--
-- Returns
--   1  it is released or expires, also if it was released like this before
--   0  not the owner; nothing was changed

local channel = KEYS[3]
local hold_for_ms, publish, released = tonumber(ARGV[2]), ARGV[3], ARGV[4]

local released_writer = released .. ':write'
local holds = tonumber(redis.call('HGET', lock, owner))
if hold_for_ms > 0 and redis.call('HEXISTS', lock, released) + redis.call('HEXISTS', lock, released_writer) > 0 then
  return 1
end
if not holds and redis.call('HEXISTS', lock, writer) == 0 then
  return 0
end
-- A reader whose lease has expired keeps no other client out.
local stays_held = hold_for_ms > 0 and (not holds or redis.call('EXISTS', hold(owner, 1)) == 1)
-- A full server allows what follows only after a write that needs no memory.
for number = 1, holds or 0 do
  redis.call('DEL', hold(owner, number))
end
if stays_held and holds then
  redis.call('SET', hold(released, 1), 1, 'PX', hold_for_ms)
  redis.call('HSET', lock, released, 1)
  redis.call('HDEL', lock, owner)
  redis.call('PEXPIRE', lock, readers_remaining())
  return 1
elseif stays_held then
  redis.call('PEXPIRE', lock, hold_for_ms)
  redis.call('HSET', lock, released_writer, 1)
  redis.call('HDEL', lock, writer)
  return 1
end
redis.call('HDEL', lock, holds and owner or writer)
local remaining = readers_remaining()
if remaining > 0 then
  redis.call('PEXPIRE', lock, remaining)
elseif not holds or redis.call('HGET', lock, 'mode') == 'read' then
  redis.call('DEL', lock)
  redis.pcall(publish, channel, holds and '0' or '1')
end
return 1
