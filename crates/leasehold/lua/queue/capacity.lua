-- queue/capacity
--
-- Sets how much there is to be had, whatever those who enter say, and remembers it for a while after
-- the lock was last used.
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

for _, value in ipairs({most or 0, remembered or 0}) do
  if value < 1 or value % 1 ~= 0 or value > 2 ^ 53 then
    return redis.error_reply('LEASEHOLD an argument is out of its range')
  end
end
if kind and kind ~= asked then
  return redis.error_reply('WRONGTYPE the lock is of the kind ' .. kind)
end
kind, capacity, kept = asked, most, remembered
redis.call('HSET', lock, 'kept', kept)
settle()
store()
return {used, now}
