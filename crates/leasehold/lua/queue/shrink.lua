-- queue/shrink
--
-- Lets a holder keep less of the lock than it took, and share what it keeps; the next come in.
--
-- ARGV[1]  owner   string; 32 hex digits
-- ARGV[2]  weight  integer from 1; what it keeps, no more than it has
--
-- Returns
--   standing  of the owner; see queue/line
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local owner, weight = ARGV[1], tonumber(ARGV[2])

if not weight or weight < 1 or weight % 1 ~= 0 then
  return redis.error_reply('LEASEHOLD weight is out of its range')
end
-- A write that needs no memory comes first: what follows is then allowed on a full server.
redis.call('HDEL', lock, '')
settle()
local has, _, first, its_token, since, channel, record = entry(owner)
if redis.call('ZSCORE', holders, owner) and weight <= tonumber(has) then
  used = used - has + weight
  enrol(owner, weight, 1, first, its_token, since, channel, record)
  if queued then
    promote()
  end
end
store()
return standing(owner)
