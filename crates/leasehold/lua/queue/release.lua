-- queue/release
--
-- Ends what an owner has, a holding or a place in the queue, and grants the lock to the next. A holding that is
-- kept from others is marked, so that no renewal under way prolongs it.
--
-- ARGV[1]  owner  string; 32 hex digits
-- ARGV[2]  keep   integer; 0, or how long others are still kept out if it holds
--
-- Returns
--   list  how it stood, now: 1 it held, and that is over or ends after that time; 2 it waited, and
--         that is over; 0 neither
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local owner, keep = ARGV[1], tonumber(ARGV[2])

if not in_range((keep or -1) + 1) then
  return redis.error_reply('LEASEHOLD keep is out of its range')
end
if not kind or plain and sole.owner ~= owner then
  return {0, now}
end
if plain and keep == 0 then
  call('DEL', lock)
  return {1, now}
end
open_queue()
settle()
local weight, first, token, since, channel, mark = entry(owner)
local holds = sole and sole.owner == owner or not sole and call('ZSCORE', holders, owner)
local stood = holds and 1 or since == '0' and 2 or 0
if not weight or stood == 0 then
  -- Not known, or an evicting server has lost a part: what is left is counted anew by the next script.
  due, changed = holds and 0 or due, changed or holds
  call('ZREM', holders, owner)
  call('HDEL', entries, owner)
elseif stood == 1 and keep > 0 then
  if channel ~= '-' then
    -- A write that needs no memory comes first: what follows is then allowed on a full server.
    call('HDEL', entries, '')
    enrol(owner, weight, first, token, since, '-', mark)
    set_end(owner, now + keep)
  end
elseif stood == 2 then
  drop(owner)
  promote()
elseif stood == 1 then
  local beside_others = not sole
  used, sole, changed = used - weight, nil, true
  -- The set of holders is not empty in between, which would cost it its expiry.
  promote()
  if beside_others then
    call('ZREM', holders, owner)
  end
  call('HDEL', entries, owner)
end
store()
return {stood, now}
