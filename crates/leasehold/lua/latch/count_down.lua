-- latch/count_down
--
-- Decrements a latch, at most once per caller, and opens it at zero.
--
-- KEYS[1]  latch    hash; see lua/README.md
-- ARGV[1]  caller   string; identifies the caller
-- ARGV[2]  channel  string; the waiters' channel
--
-- Returns
--   n  the remaining count; 0 when the latch is open
--   -1  no latch
--   error WRONGTYPE  the key holds a lock; nothing was changed

local latch = KEYS[1]
local caller, channel = ARGV[1], ARGV[2]

local state = redis.call('HMGET', latch, 'kind', 'remaining', 'by ' .. caller)
local kind, remaining, counted = state[1], tonumber(state[2] or 0), state[3]
if not kind then
  return -1
end
if kind ~= 'latch' then
  return redis.error_reply('WRONGTYPE the lock is of the kind ' .. kind)
end
if remaining > 0 and not counted then
  remaining = remaining - 1
  redis.call('HSET', latch, 'by ' .. caller, 1, 'remaining', remaining)
  if remaining == 0 then
    -- A refused publish must not fail the call: waiters then rely on polls.
    if type(redis.pcall('SPUBLISH', channel, '')) == 'table' then
      redis.pcall('PUBLISH', channel, '')
    end
  end
end
return remaining
