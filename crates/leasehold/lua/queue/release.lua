-- queue/release
--
-- Releases the lock or leaves the queue, and grants the lock to the next
-- waiter. With hold_for, other owners stay out until then, and the entry is
-- marked so that a renewal in flight cannot prolong it.
--
-- Preceded by queue/prelude.
--
-- ARGV[1]  owner     string; 32 hex digits
-- ARGV[2]  hold_for  integer; 0, or how long other owners stay out
--
-- Returns
--   list  state, now: 1 the owner held the lock, 2 it waited, 0 neither
--   error LEASEHOLD  an argument is out of range; nothing was changed

local owner, hold_for = ARGV[1], tonumber(ARGV[2])

if not in_range(hold_for, 0) then
  return redis.error_reply('LEASEHOLD hold_for is out of range')
end
local alone = state.alone
if not state.kind or alone and alone.owner ~= owner then
  return {0, now}
end
if alone and hold_for == 0 then
  call('DEL', lock)
  return {1, now}
end
open_queue(state)
evict_expired(state)
local weight, first_lease, token, since, channel, value = entry(owner)
local role = not weight and 0 or since == '0' and 2 or 1
if role == 1 and hold_for > 0 then
  if channel ~= '-' then
    -- A full server allows the rest only after a write without new memory.
    call('HDEL', entries, '')
    write_entry(owner, weight, first_lease, token, since, '-', value)
    set_end(state, holders, owner, now + hold_for)
  end
elseif role == 2 then
  remove_waiter(owner)
  promote(state)
elseif role == 1 then
  state.used = state.used - weight
  -- Promotes first: a set that is empty in between would lose its expiry.
  promote(state)
  call('ZREM', holders, owner)
  call('HDEL', entries, owner)
end
return store(state, {role, now})
