-- redisson/permits_acquire
--
-- Takes permits that expire if there are so many, counting those whose lease has ended. By the server's clock, where
-- Redisson's own clients use theirs.
--
-- KEYS[1]  available  integer; how many there are; absent like none
-- KEYS[2]  held       sorted set; permits that are held, by when they expire
-- KEYS[3]  channel    string; where waiters listen
-- ARGV[1]  ids        string; the ids of the permits, 16 bytes each
-- ARGV[2]  lease_ms   integer from 1; milliseconds
-- ARGV[3]  publish    string; the command by which this fleet announces
--
-- Returns
--   1  they are ours
--   0  there are not so many

local available, held, channel = KEYS[1], KEYS[2], KEYS[3]
local ids, lease_ms, publish = ARGV[1], ARGV[2], ARGV[3]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local wanted = #ids / 16
if redis.call('ZSCORE', held, ids:sub(1, 16)) then
  return 1
end
local expired = redis.call('ZRANGEBYSCORE', held, 0, now, 'LIMIT', 0, wanted)
if #expired > 0 then
  redis.call('ZREM', held, unpack(expired))
  local there = redis.call('INCRBY', available, #expired)
  if there > 0 then
    redis.pcall(publish, channel, there)
  end
end
if tonumber(redis.call('GET', available) or 0) < wanted then
  return 0
end
redis.call('DECRBY', available, wanted)
for at = 1, #ids, 16 do
  redis.call('ZADD', held, now + lease_ms, ids:sub(at, at + 15))
end
local life = redis.call('PTTL', available)
if life > 0 then
  redis.call('PEXPIRE', held, life)
end
return 1
