-- queue/release
--
-- Ends what an owner has, a holding or a place in line, and gives the lock to the next. A holding that is
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

if not keep or keep < 0 or keep % 1 ~= 0 then
  return redis.error_reply('LEASEHOLD keep is out of its range')
end
-- A write that needs no memory comes first: what follows is then allowed on a full server.
redis.call('HDEL', lock, '')
settle()
local stood = 0
if redis.call('ZSCORE', holders, owner) then
  stood = 1
elseif queued and redis.call('ZSCORE', line, owner) then
  stood = 2
end
if stood == 1 and keep > 0 then
  local weight, shared, first, its_token, since, channel, record = entry(owner)
  if channel ~= '-' then
    enrol(owner, weight, shared, first, its_token, since, '-', record)
    redis.call('ZADD', holders, now + keep, owner)
    last = math.max(last, now + keep)
  end
elseif stood > 0 then
  leave(owner)
  if queued then
    promote()
  end
end
store()
return {stood, now}
