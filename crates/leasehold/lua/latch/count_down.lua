-- latch/count_down
--
-- Counts a latch down by one, once for every caller, and opens it at zero.
--
-- KEYS[1]  latch    hash; see lua/README.md
-- ARGV[1]  caller   string; who counts down
-- ARGV[2]  channel  string; where waiters listen
--
-- Returns
--   n  how many are still to come; 0 when it is open
--   -1  there is none
--   error WRONGTYPE  the key is that of a lock; nothing was changed

local latch = KEYS[1]
local caller, channel = ARGV[1], ARGV[2]

local state = redis.call('HMGET', latch, 'kind', 'left', 'by ' .. caller)
local kind, left, counted = state[1], tonumber(state[2] or 0), state[3]
if not kind then
  return -1
end
if kind ~= 'latch' then
  return redis.error_reply('WRONGTYPE the lock is of the kind ' .. kind)
end
if left > 0 and not counted then
  left = left - 1
  redis.call('HSET', latch, 'by ' .. caller, 1, 'left', left)
  if left == 0 then
    -- A refused publish must not fail what is done: waiters then find it by polling.
    redis.pcall('SPUBLISH', channel, '')
  end
end
return left
