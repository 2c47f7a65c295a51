-- queue/capacity
--
-- Sets the capacity, whatever the owners that enter say, and remembers it for a while after the lock was last used.
-- Waiters that can never fit are dropped; they find out at their next heartbeat.
--
-- ARGV[1]  asked       string; which kind of lock this is
-- ARGV[2]  most        integer from 1; the capacity from now on
-- ARGV[3]  remembered  integer from 1; for how long
--
-- Returns
--   list  how much is in use, now
--   error WRONGTYPE  the lock is one of another kind; nothing was changed
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local asked, most, remembered = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

if not in_range(most or 0, remembered or 0) then
  return redis.error_reply('LEASEHOLD an argument is out of its range')
end
settle()
if kind and kind ~= asked and used + kept > 0 then
  store()
  return redis.error_reply('WRONGTYPE the lock is of the kind ' .. kind)
end
open_queue()
kind, capacity, kept, changed = asked, most, remembered, true
for _, owner in ipairs(call('ZRANGE', queue, 0, -1)) do
  if tonumber(entry(owner) or 0) > most then
    drop(owner)
  end
end
promote()
store()
return {used, now}
