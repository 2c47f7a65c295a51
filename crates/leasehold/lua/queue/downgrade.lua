-- queue/downgrade
--
-- Lets a holder keep less of the lock than it took, and grants the rest to the next.
--
-- ARGV[1]  owner   string; 32 hex digits
-- ARGV[2]  weight  integer from 1; what it keeps, no more than it has
--
-- Returns
--   standing  of the owner; see queue/prelude_steps
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local owner, weight = ARGV[1], tonumber(ARGV[2])

if not in_range(weight or 0) then
  return redis.error_reply('LEASEHOLD weight is out of its range')
end
if expiry > 0 or plain and sole.owner == owner then
  open_queue()
  -- A write that needs no memory comes first: what follows is then allowed on a full server.
  call('HDEL', entries, '')
  settle()
  local has, first, token, since, channel, mark = entry(owner)
  if has and since ~= '0' and weight <= tonumber(has) then
    used, changed = used - has + weight, true
    enrol(owner, weight, first, token, since, channel, mark)
    promote()
  end
end
return stored(standing(owner))
