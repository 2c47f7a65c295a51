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

if not in_range(weight, 1) then
  return redis.error_reply('LEASEHOLD weight is out of range')
end
local alone = state.alone
if state.kind and (not alone or alone.owner == owner) then
  open_queue(state)
  -- A full server allows what follows only after a write that needs no memory.
  call('HDEL', entries, '')
  evict_expired(state)
  local before, first_lease, token, since, channel, value = entry(owner)
  if before and since ~= '0' and weight <= tonumber(before) then
    state.used = state.used - before + weight
    write_entry(owner, format('%d', weight), first_lease, token, since, channel, value)
    promote(state)
  end
end
return store(state, status(state, owner))
