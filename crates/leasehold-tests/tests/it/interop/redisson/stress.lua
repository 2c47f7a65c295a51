-- Records who waits, enters and leaves during a stress run, and checks
-- exclusion.
--
-- KEYS[1]  inside  sorted set; who is inside with which weight, by latest exit
-- KEYS[2]  last    string; the time of the last entry or exit
-- ARGV     step (wait, enter, leave), id, kind, name, token

local inside, last = KEYS[1], KEYS[2]
local step, id, kind, name, token = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

-- No process stays longer. A process that does not leave was killed, and its
-- lease ends later than this.
local longest_stay = 1000
local weights = {write = 1000}
local capacities = {read = 1000, write = 1000, permits = 3, semaphore = 3}

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

if step == 'wait' then
  redis.call('HSET', 'storm:waits', id, now)
  return 'ok'
end
local weight = weights[kind] or 1
if step == 'leave' then
  redis.call('ZREM', inside, id .. ' ' .. weight)
  redis.call('SET', last, now)
  return 'ok'
end

redis.call('ZREMRANGEBYSCORE', inside, 0, now)
local used = weight
for _, member in ipairs(redis.call('ZRANGE', inside, 0, -1)) do
  used = used + tonumber(member:match(' (%d+)$'))
end
if used > (capacities[kind] or 1) then
  redis.call('RPUSH', 'storm:overlaps', kind .. ' ' .. name)
end
if token > 0 then
  if token <= tonumber(redis.call('HGET', 'storm:tokens', name) or 0) then
    redis.call('RPUSH', 'storm:overlaps', 'token of ' .. name)
  end
  redis.call('HSET', 'storm:tokens', name, token)
end
redis.call('ZADD', inside, now + longest_stay, id .. ' ' .. weight)

-- How long it could have been acquired: since the wait began, and since the
-- last entry or exit.
local since = math.max(tonumber(redis.call('HGET', 'storm:waits', id)), tonumber(redis.call('GET', last) or 0))
if now - since > tonumber(redis.call('HGET', 'storm:idle', kind) or 0) then
  redis.call('HSET', 'storm:idle', kind, now - since)
end
redis.call('SET', last, now)
redis.call('HINCRBY', 'storm:held', kind, 1)
return 'ok'
