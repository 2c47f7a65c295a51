-- queue/enqueue
--
-- Acquires the lock if no owner waits and it fits; otherwise enters the queue
-- if the owner waits. Repeated by the same owner, only returns its status.
--
-- Preceded by queue/prelude.
--
-- ARGV[1]  value    string; kind, capacity, weight, owner: see lua/README.md
-- ARGV[2]  channel  string; where the owner's client receives its grants
-- ARGV[3]  lease    integer from 1; the lease of an owner that holds at once
-- ARGV[4]  wait     integer; 0 not to wait, else how long a heartbeat is valid
-- ARGV[5]  ticket   integer; 0, or the ticket of a queue entry that was lost
--
-- Returns
--   status  of the owner; see queue/prelude
--   error WRONGTYPE  the lock is of another kind; nothing was changed
--   error LEASEHOLD  an argument is out of range; nothing was changed

local value, channel = ARGV[1], ARGV[2]
local lease, wait, ticket = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local kind, limit, part, owner = match(value, '^lh1:(%a+):(%d+):(%d+) (%x+) ')
local weight, most = tonumber(part), tonumber(limit)
local are_valid = in_range(weight, 1) and in_range(most, 1) and in_range(lease, 1)
if not (are_valid and in_range(wait, 0) and in_range(ticket, 0)) then
  return redis.error_reply('LEASEHOLD an argument is out of range')
end
evict_expired(state)
local used, alone = state.used, state.alone
local is_free = used == 0 and state.capacity_ttl == 0
if state.kind and state.kind ~= kind and not is_free then
  return store(state, redis.error_reply('WRONGTYPE the lock is of the kind ' .. state.kind))
end
local capacity = is_free and most or state.capacity
local fits = used + weight <= capacity
local is_known = alone and alone.owner == owner
local reply
if weight > capacity and not is_known and (is_free or alone or not call('HGET', entries, owner)) then
  return is_free and {3, capacity, now} or store(state, {3, capacity, now})
elseif is_free then
  call('SET', lock, value, 'PXAT', format('%d', math.ceil((now + lease) / 1000)))
  return {1, tonumber((next_token(now))), now, now + lease, 1}
elseif not is_known and (fits or wait > 0) then
  open_queue(state)
  local newest = call('ZRANGE', queue, '-1', '-1', 'WITHSCORES')
  local first_lease = format('%d', min(wait, lease))
  local can_hold = fits and not newest[1]
  is_known = call('HGET', entries, owner)
  if can_hold and not is_known then
    state.new_holders = state.new_holders or used == 0
    local token = add_holder(state, owner, lease, part, first_lease, channel, value)
    reply = {1, tonumber(token), now, now + lease, 0}
  elseif wait > 0 and not is_known then
    state.new_queue = not newest[1]
    write_entry(owner, part, first_lease, '0', '0', channel, value)
    ticket = ticket > 0 and ticket or max((newest[2] or 0) + 1, now)
    call('ZADD', queue, format('%d', ticket), owner)
    set_end(state, heartbeats, owner, now + wait)
    promote(state)
    reply = state.used == used and {2, newest[1] and call('ZRANK', queue, owner) or 0, now, ticket, any_holder()}
  end
end
return store(state, reply or status(state, owner))
