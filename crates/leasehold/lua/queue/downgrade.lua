-- queue/downgrade
--
-- Reduces the weight of a holder, and grants the rest to the next waiters.
--
-- Preceded by queue/prelude.
--
-- ARGV[1]  owner   string; 32 hex digits
-- ARGV[2]  weight  integer from 1; the new weight, at most the old one
--
-- Returns
--   status  of the owner; see queue/prelude
--   error LEASEHOLD  an argument is out of range; nothing was changed

local owner, weight = ARGV[1], tonumber(ARGV[2])

if not in_range(weight or 0) then
  return redis.error_reply('LEASEHOLD weight is out of range')
end
if expiry > 0 or alone and alone.owner == owner then
  open_queue()
  -- A full server allows what follows only after a write that needs no memory.
  call('HDEL', entries, '')
  evict_expired()
  local before, first_lease, token, since, channel, value = entry(owner)
  if before and since ~= '0' and weight <= tonumber(before) then
    used, changed = used - before + weight, true
    write_entry(owner, weight, first_lease, token, since, channel, value)
    promote()
  end
end
return store_and(status(owner))
