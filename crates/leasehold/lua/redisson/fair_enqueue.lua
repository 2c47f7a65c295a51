-- redisson/fair_enqueue
--
-- Takes a lock if it is free and it is our turn; else takes a place in line, or keeps one.
--
-- ARGV[3]  lease_ms  integer from 1; milliseconds
-- ARGV[4]  step      string; try (takes no place), enter, or stay (makes nothing that is not there)
--
-- Returns
--   list  1, left_ms: it is ours for so long
--   list  2, ahead, now_ms, left_ms, field: so many are first; who holds it and for how long, if anybody does
--   0     it has no place in line

local lease_ms, step = tonumber(ARGV[3]), ARGV[4]

if redis.call('HEXISTS', lock, owner) == 1 then
  return {1, redis.call('PTTL', lock)}
end
if redis.call('EXISTS', lock) == 0 and (head == owner or (not head and step ~= 'stay')) then
  redis.call('LPOP', line)
  redis.call('ZREM', timeouts, owner)
  advance(0)
  redis.call('HSET', lock, owner, 1)
  redis.call('PEXPIRE', lock, lease_ms)
  return {1, lease_ms}
end
local given_up = redis.call('ZSCORE', timeouts, owner)
if given_up and tonumber(given_up) < now + wait_ms then
  redis.call('ZADD', timeouts, now + wait_ms, owner)
elseif not given_up and step == 'stay' then
  return 0
elseif not given_up and step == 'enter' then
  local last = redis.call('LINDEX', line, -1)
  local last_given_up = last and redis.call('ZSCORE', timeouts, last)
  local base = last_given_up and last_given_up - now or redis.call('PTTL', lock)
  redis.call('ZADD', timeouts, base + wait_ms + now, owner)
  redis.call('RPUSH', line, owner)
end
local ahead = redis.call('LPOS', line, owner) or redis.call('LLEN', line)
return {2, ahead, now, redis.call('PTTL', lock), redis.call('HRANDFIELD', lock)}
