-- latch/set
--
-- Creates a latch unless one exists.
--
-- KEYS[1]  latch    hash; see lua/README.md
-- ARGV[1]  count    integer from 1; the number of count-downs that open it
-- ARGV[2]  life_ms  integer from 1; milliseconds until it expires, open or not
--
-- Returns
--   1  created
--   0  a latch exists; nothing was changed
--   error WRONGTYPE  the key holds a lock; nothing was changed
--   error LEASEHOLD  an argument is out of range; nothing was changed

local latch = KEYS[1]
local count, life_ms = tonumber(ARGV[1]), tonumber(ARGV[2])

if not count or count < 1 or count % 1 ~= 0 or not life_ms or life_ms < 1 or life_ms % 1 ~= 0 then
  return redis.error_reply('LEASEHOLD an argument is out of range')
end
local kind = redis.call('HGET', latch, 'kind')
if kind and kind ~= 'latch' then
  return redis.error_reply('WRONGTYPE the lock is of the kind ' .. kind)
end
if kind then
  return 0
end
redis.call('HSET', latch, 'kind', 'latch', 'remaining', count)
redis.call('PEXPIRE', latch, life_ms)
return 1
