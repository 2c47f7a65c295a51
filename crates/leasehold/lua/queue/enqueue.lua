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

local wanted_kind, limit, weight, owner = match(value, '^lh1:(%a+):(%d+):(%d+) (%x+) ')
limit, weight = tonumber(limit or 0), tonumber(weight or 0)
if not in_range(weight, limit, lease or 0, (wait or -1) + 1, (ticket or -1) + 1) then
  return redis.error_reply('LEASEHOLD an argument is out of range')
end
evict_expired()
if kind and kind ~= wanted_kind and used + capacity_ttl > 0 then
  store()
  return redis.error_reply('WRONGTYPE the lock is of the kind ' .. kind)
end
if used == 0 and capacity_ttl == 0 then
  if weight > limit then
    return {3, limit, now}
  end
  call('SET', lock, value, 'PXAT', digits(math.ceil((now + lease) / 1000)))
  return {1, next_token(), now, now + lease, 1}
end
local reply
local is_known = entry(owner)
local is_refused = alone and wait == 0 and used + weight > capacity
if not is_known and weight > capacity then
  reply = {3, capacity, now}
elseif not is_known and not is_refused then
  open_queue()
  local newest, first_lease = call('ZRANGE', queue, '-1', '-1', 'WITHSCORES'), digits(min(wait, lease))
  if not newest[1] and used + weight <= capacity then
    fresh[holders], fresh[entries] = true, true
    local token, ends = add_holder(owner, lease, weight, first_lease, channel, value)
    reply = {1, token, now, ends, 0}
  elseif wait > 0 then
    if not newest[1] then
      fresh[queue], fresh[heartbeats], fresh[entries] = true, true, true
    end
    ticket = ticket > 0 and ticket or max(tonumber(newest[2] or 0) + 1, now)
    enqueue(owner, ticket, now + wait, weight, first_lease, channel, value)
    local before = used
    promote()
    reply = used == before and waiting_status(owner, ticket)
  end
end
return store_and(reply or status(owner))
