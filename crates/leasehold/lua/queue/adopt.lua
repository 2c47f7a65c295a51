-- queue/adopt
--
-- Adopts a lock that was handed over: replaces the owner in the ticket by the
-- caller, with a token above that of the process that handed it over. A ticket
-- therefore gives one holder. Repeated by the same caller, returns its status.
--
-- Preceded by queue/prelude.
--
-- ARGV[1]  pending  string; 32 hex digits: the owner in the ticket
-- ARGV[2]  value    string; the caller's value
-- ARGV[3]  channel  string; where the caller's client receives its grants
-- ARGV[4]  lease    integer from 1
--
-- Returns
--   status  of the caller's owner; see queue/prelude
--   error WRONGTYPE  the lock is of another kind; nothing was changed
--   error LEASEHOLD  an argument is out of range; nothing was changed

local pending, value, channel = ARGV[1], ARGV[2], ARGV[3]
local lease = tonumber(ARGV[4])

local owner = match(value, '^lh1%S+ (%x+) ')
if not owner or not in_range(lease, 1) then
  return redis.error_reply('LEASEHOLD an argument is out of range')
end
if state.kind and not state.alone then
  -- A full server allows what follows only after a write that needs no memory.
  call('HDEL', entries, '')
  evict_expired(state)
  local weight, first_lease, given, _, mark = entry(pending)
  if mark == '>' then
    local token, clock = next_token(now)
    if tonumber(token) <= tonumber(given) then
      -- The counter was lost, and the clock stepped back.
      token = format('%d', given + 1)
      call('SET', counter, token)
    end
    write_entry(owner, weight, first_lease, token, clock, channel, value)
    set_end(state, holders, owner, now + lease)
    call('ZREM', holders, pending)
    call('HDEL', entries, pending)
  end
end
return store(state, status(state, owner))
