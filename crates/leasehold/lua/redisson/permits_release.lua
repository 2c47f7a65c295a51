-- redisson/permits_release
--
-- Releases permits and wakes waiters; or keeps them until they expire, under ids that no renewal under
-- way has.
--
-- KEYS[1]  available  integer; how many there are
-- KEYS[2]  held       sorted set; permits that are held, by when they expire
-- KEYS[3]  channel    string; where waiters listen
-- ARGV[1]  ids        string; the ids of the permits, 16 bytes each
-- ARGV[2]  keep_ms    integer from 0; milliseconds until they are free
-- ARGV[3]  publish    string; the command by which this fleet announces
-- ARGV[4]  kept       string; as many ids, which stand in place of the permits' while they are kept
--
-- Returns
--   1  all were ours, and are free or will be; also where they were so released before
--   0  at least one was not ours any more; the others are free

local available, held, channel = KEYS[1], KEYS[2], KEYS[3]
local ids, keep_ms, publish, kept = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local freed, expired = 0, 0
for at = 1, #ids, 16 do
  local id, kept_id = ids:sub(at, at + 15), kept:sub(at, at + 15)
  local expires = redis.call('ZSCORE', held, id)
  expired = expired + ((expires and tonumber(expires) <= now) and 1 or 0)
  if keep_ms == 0 then
    freed = freed + redis.call('ZREM', held, id)
  elseif expires then
    redis.call('ZADD', held, now + keep_ms, kept_id)
    redis.call('ZREM', held, id)
    freed = freed + 1
  elseif redis.call('ZSCORE', held, kept_id) then
    freed = freed + 1
  end
end
if keep_ms == 0 and freed > 0 then
  redis.pcall(publish, channel, redis.call('INCRBY', available, freed))
end
if freed < #ids / 16 or expired > 0 then
  return 0
end
return 1
