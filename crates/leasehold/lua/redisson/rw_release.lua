-- redisson/rw_release
--
-- Releases what a reader or writer holds, however often it was entered; or keeps it from others until it
-- ends by itself, under names that no renewal under way has. Waiters are woken when the lock is free.
--
-- KEYS[3]  channel  string; where waiters listen
-- ARGV[2]  keep_ms  integer from 0; milliseconds until it is free
-- ARGV[3]  publish  string; the command by which this fleet announces
-- ARGV[4]  kept     string; the owner's name while what it held is kept
--
-- Returns
--   1  it is released, or will be; also where it was so released before
--   0  it was not ours; nothing was changed

local channel = KEYS[3]
local keep_ms, publish, kept = tonumber(ARGV[2]), ARGV[3], ARGV[4]

local kept_writer = kept .. ':write'
local entries = tonumber(redis.call('HGET', lock, owner))
if keep_ms > 0 and redis.call('HEXISTS', lock, kept) + redis.call('HEXISTS', lock, kept_writer) > 0 then
  return 1
end
if not entries and redis.call('HEXISTS', lock, writer) == 0 then
  return 0
end
-- What has expired is not kept.
local is_kept = keep_ms > 0 and (not entries or redis.call('EXISTS', entry(owner, 1)) == 1)
-- A write that needs no memory comes first: what follows is then allowed on a full server.
for number = 1, entries or 0 do
  redis.call('DEL', entry(owner, number))
end
if is_kept and entries then
  redis.call('SET', entry(kept, 1), 1, 'PX', keep_ms)
  redis.call('HSET', lock, kept, 1)
  redis.call('HDEL', lock, owner)
  redis.call('PEXPIRE', lock, readers_left())
  return 1
elseif is_kept then
  redis.call('PEXPIRE', lock, keep_ms)
  redis.call('HSET', lock, kept_writer, 1)
  redis.call('HDEL', lock, writer)
  return 1
end
redis.call('HDEL', lock, entries and owner or writer)
local left = readers_left()
if left > 0 then
  redis.call('PEXPIRE', lock, left)
elseif not entries or redis.call('HGET', lock, 'mode') == 'read' then
  redis.call('DEL', lock)
  redis.pcall(publish, channel, entries and '0' or '1')
end
return 1
