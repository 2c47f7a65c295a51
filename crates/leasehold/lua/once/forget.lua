-- once/forget
--
-- Removes the record of a run, if it is the last one, and restores the record
-- of the run before. The tick can then run again.
--
-- KEYS[1]  job    hash; see lua/README.md
-- ARGV[1]  token  string; the fencing token of the run
-- ARGV[2]  life   integer from 1; how long to record the run before, in
--                 milliseconds
--
-- Returns
--   1  removed
--   0  another run is recorded, or none
--   error LEASEHOLD  an argument is out of range; nothing was changed

local job = KEYS[1]
local token, life = ARGV[1], tonumber(ARGV[2])
local FIELDS = {'tick', 'period', 'token', 'runner', 'report'}

if not life or life < 1 or life % 1 ~= 0 or life > 2 ^ 53 then
  return redis.error_reply('LEASEHOLD life is out of range')
end
if redis.call('HGET', job, 'token') ~= token then
  return 0
end
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
redis.call('PEXPIRE', job, life)
return 1
