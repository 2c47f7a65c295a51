-- once/forget
--
-- Removes the record of a run, if it is the last one, and restores the record
-- of the run before. The tick can then run again. A claim of the run that
-- arrives later is refused.
--
-- KEYS[1]  job    hash; see lua/README.md
-- ARGV[1]  token  integer from 1; the fencing token of the run
-- ARGV[2]  life   integer from 1; how long to record the run before and this
--                 token, in milliseconds
--
-- Returns
--   1  removed
--   0  another run is recorded, or none
--   error LEASEHOLD  an argument is out of range; nothing was changed

local job = KEYS[1]
local token, life = ARGV[1], tonumber(ARGV[2])
local FIELDS = {'tick', 'period', 'token', 'runner', 'report'}

if not tonumber(token) or not life or life < 1 or life % 1 ~= 0 or life > 2 ^ 53 then
  return redis.error_reply('LEASEHOLD an argument is out of range')
end
local last, cancelled = unpack(redis.call('HMGET', job, 'token', 'cancelled'))
if last == token then
  local before = {}
  for i, field in ipairs(FIELDS) do
    before[i] = redis.call('HGET', job, 'before:' .. field)
  end
  redis.call('DEL', job)
  for i, field in ipairs(FIELDS) do
    if before[i] then
      redis.call('HSET', job, field, before[i])
    end
  end
end
if (tonumber(cancelled) or 0) < tonumber(token) then
  cancelled = token
end
redis.call('HSET', job, 'cancelled', cancelled)
-- The record of another run may live longer.
if redis.call('PTTL', job) < life then
  redis.call('PEXPIRE', job, life)
end
if last == token then
  return 1
end
return 0
