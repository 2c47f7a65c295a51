-- queue/enter
--
-- Takes the lock if nobody waits and there is room; else gets in line, if the owner is to wait.
-- Repeated by the same owner it only answers how that owner stands.
--
-- ARGV[1]   asked     string; which kind of lock this is, the same for all who use it
-- ARGV[2]   owner     string; 32 hex digits, new for every acquisition
-- ARGV[3]   record    string; who that is, see lua/README.md
-- ARGV[4]   channel   string; where the owner's client hears of its grant
-- ARGV[5]   weight    integer from 1; how much of the capacity it takes
-- ARGV[6]   shared    0 or 1; whether it comes in under the token of those inside
-- ARGV[7]   most      integer from 1; the capacity, unless the lock has one
-- ARGV[8]   lease     integer from 1; of one who takes it at once
-- ARGV[9]   wait      integer; 0 not to wait, else how long the place is kept unless heard of
-- ARGV[10]  ticket    integer; 0, or that of the place which the same waiter has lost
--
-- Returns
--   standing  of the owner; see queue/line
--   error WRONGTYPE  the lock is one of another kind; nothing was changed
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local asked, owner, record, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local weight, shared, most = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local lease, wait, ticket = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])

for _, value in ipairs({weight or 0, most or 0, lease or 0, (wait or -1) + 1, (ticket or -1) + 1}) do
  if value < 1 or value % 1 ~= 0 or value > 2 ^ 53 then
    return redis.error_reply('LEASEHOLD an argument is out of its range')
  end
end
if kind and kind ~= asked then
  return redis.error_reply('WRONGTYPE the lock is of the kind ' .. kind)
end
kind, capacity = asked, capacity > 0 and capacity or most
settle()
if state[1] and redis.call('HEXISTS', lock, owner) == 1 then
  store()
  return standing(owner)
end
local first = math.min(wait, lease)
local answer
if weight > capacity then
  answer = {3, capacity, now}
elseif not queued and fits(weight) then
  local ends = admit(owner, lease, weight, shared, first, channel, record)
  answer = {1, token, now, ends}
elseif wait > 0 then
  local newest = tonumber(state[7] or 0)
  ticket = ticket > 0 and ticket or math.max(newest + 1, now)
  queued, last = true, math.max(last, now + wait)
  redis.call('ZADD', line, ticket, owner)
  redis.call('ZADD', alive, now + wait, owner)
  redis.call('HSET', lock, 'ticket', digits(math.max(newest, ticket)))
  enrol(owner, weight, shared, first, 0, 0, channel, record)
  promote()
end
store()
return answer or standing(owner)
