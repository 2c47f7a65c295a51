-- queue/enqueue
--
-- Acquires the lock if no owner waits and there is room; else enters the queue, if the owner is to wait.
-- Repeated by the same owner it only replies how that owner stands.
--
-- ARGV[1]  mark     string; kind, capacity, weight, owner and more, see lua/README.md
-- ARGV[2]  channel  string; where the owner's client hears of its grant
-- ARGV[3]  lease    integer from 1; of an owner that holds the lock at once
-- ARGV[4]  wait     integer; 0 not to wait, else how long a heartbeat counts
-- ARGV[5]  ticket   integer; 0, or that of the place which the same waiter has lost
--
-- Returns
--   standing  of the owner; see queue/prelude_steps
--   error WRONGTYPE  the lock is one of another kind; nothing was changed
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local mark, channel = ARGV[1], ARGV[2]
local lease, wait, ticket = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

local asked, most, weight, owner = match(mark, '^lh1:(%a+):(%d+):(%d+) (%x+) ')
most, weight = tonumber(most or 0), tonumber(weight or 0)
if not in_range(weight, most, lease or 0, (wait or -1) + 1, (ticket or -1) + 1) then
  return redis.error_reply('LEASEHOLD an argument is out of its range')
end
settle()
if kind and kind ~= asked and used + kept > 0 then
  store()
  return redis.error_reply('WRONGTYPE the lock is of the kind ' .. kind)
end
if used == 0 and kept == 0 then
  if weight > most then
    return {3, most, now}
  end
  call('SET', lock, mark, 'PXAT', digits(math.ceil((now + lease) / 1000)))
  return {1, next_token(), now, now + lease, 1}
end
local reply
local is_known = sole and sole.owner == owner or not plain and call('HEXISTS', entries, owner) == 1
local is_refused = plain and wait == 0 and used + weight > capacity
if not is_known and weight > capacity then
  reply = {3, capacity, now}
elseif not is_known and not is_refused then
  open_queue()
  local newest, first = call('ZRANGE', queue, '-1', '-1', 'WITHSCORES'), digits(min(wait, lease))
  if not newest[1] and used + weight <= capacity then
    fresh[holders], fresh[entries] = true, true
    local token, ends = admit(owner, lease, weight, first, channel, mark)
    reply = {1, token, now, ends, 0}
  elseif wait > 0 then
    if not newest[1] then
      fresh[queue], fresh[heartbeats], fresh[entries] = true, true, true
    end
    ticket = ticket > 0 and ticket or max(tonumber(newest[2] or 0) + 1, now)
    enqueue(owner, ticket, now + wait, weight, first, channel, mark)
    local before = used
    promote()
    reply = used == before and waiting(owner, ticket)
  end
end
return stored(reply or standing(owner))
