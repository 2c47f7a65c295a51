-- queue/hand_over
--
-- Replaces a holder by the owner in a ticket, until that owner is
-- adopted or `within` is over. Its entry is marked, and waiters stay in the
-- queue. Repeated, changes nothing.
--
-- Preceded by queue/prelude.
--
-- ARGV[1]  owner    string; 32 hex digits: the holder
-- ARGV[2]  pending  string; the holder's value with the owner in the ticket
-- ARGV[3]  token    integer from 1; the holder's token
-- ARGV[4]  within   integer from 1; how long the lock waits for its adoption
--
-- Returns
--   list  state, now: 1 handed over, 0 not a holder
--   error LEASEHOLD  an argument is out of range; nothing was changed

local owner, pending = ARGV[1], ARGV[2]
local token, within = tonumber(ARGV[3]), tonumber(ARGV[4])

local next_owner = match(pending, '^lh1%S+ (%x+) ')
if not next_owner or not (in_range(token, 1) and in_range(within, 1)) then
  return redis.error_reply('LEASEHOLD an argument is out of range')
end
local alone = state.alone
if not state.kind or alone and alone.owner ~= owner then
  return {0, now}
end
open_queue(state)
-- A full server allows what follows only after a write that needs no memory.
call('HDEL', entries, '')
evict_expired(state)
local is_done = call('ZSCORE', holders, next_owner)
if not is_done and call('ZSCORE', holders, owner) then
  local weight, first_lease, _, since = entry(owner)
  write_entry(next_owner, weight, first_lease, format('%d', token), since, '>', pending)
  set_end(state, holders, next_owner, now + within)
  -- Last: a set that is empty in between would lose its expiry.
  call('ZREM', holders, owner)
  call('HDEL', entries, owner)
  is_done = true
end
return store(state, {is_done and 1 or 0, now})
