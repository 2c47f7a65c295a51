-- redisson/rw_release
--
-- Gives back what a reader or writer holds, however often it was entered; or leaves it to end by itself. Those who
-- wait are woken when nobody holds the lock any more.
--
-- KEYS[3]  channel  string; where waiters listen
-- ARGV[2]  keep_ms  integer from 0; milliseconds until it is free
-- ARGV[3]  publish  string; the command by which this fleet announces
--
-- Returns
--   1  it is given back, or will be
--   0  it was not ours; nothing was changed

local channel = KEYS[3]
local keep_ms, publish = tonumber(ARGV[2]), ARGV[3]

local entries = tonumber(redis.call('HGET', lock, owner))
if not entries and redis.call('HEXISTS', lock, writer) == 0 then
  return 0
end
for number = 1, entries or 0 do
  if keep_ms > 0 then
    redis.call('PEXPIRE', entry(owner, number), keep_ms)
  else
    redis.call('DEL', entry(owner, number))
  end
end
if keep_ms > 0 then
  redis.call('PEXPIRE', lock, entries and readers_left() or keep_ms)
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
