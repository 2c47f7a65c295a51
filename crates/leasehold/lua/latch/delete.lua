-- latch/delete
--
-- Deletes a latch and wakes its waiters.
--
-- KEYS[1]  latch    hash; see lua/README.md
-- ARGV[1]  channel  string; the waiters' channel
--
-- Returns
--   1  deleted
--   0  no latch
--   error WRONGTYPE  the key holds a lock; nothing was changed

local latch = KEYS[1]
local channel = ARGV[1]

local kind = redis.call('HGET', latch, 'kind')
if not kind then
  return 0
end
if kind ~= 'latch' then
  return redis.error_reply('WRONGTYPE the lock is of the kind ' .. kind)
end
redis.call('DEL', latch)
-- A refused publish must not fail the call: waiters then find it by polling.
if type(redis.pcall('SPUBLISH', channel, '')) == 'table' then
  redis.pcall('PUBLISH', channel, '')
end
return 1
