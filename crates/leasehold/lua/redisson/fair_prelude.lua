-- redisson/fair_prelude (prelude)
--
-- What the scripts of fair locks share: the line, from which those who were waited for too long are removed first.
-- By the server's clock, where Redisson's own clients use theirs.
--
-- KEYS[1]  lock      hash; the owner's field counts how often it was entered
-- KEYS[2]  line      list; those who wait, the next one first
-- KEYS[3]  timeouts  sorted set; those who wait, by when they are given up
-- ARGV[1]  owner     string; client and thread, as Redisson writes them
-- ARGV[2]  wait_ms   integer from 1; how much longer each waits for the one before it

local lock, line, timeouts = KEYS[1], KEYS[2], KEYS[3]
local owner, wait_ms = ARGV[1], tonumber(ARGV[2])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local head = redis.call('LINDEX', line, 0)
while head do
  local score = redis.call('ZSCORE', timeouts, head)
  if score and tonumber(score) > now then
    break
  end
  redis.call('ZREM', timeouts, head)
  redis.call('LPOP', line)
  head = redis.call('LINDEX', line, 0)
end

-- Those behind the first `ahead` need not wait for one who leaves.
local function advance(ahead)
  for _, waiter in ipairs(redis.call('LRANGE', line, ahead, -1)) do
    redis.call('ZINCRBY', timeouts, -wait_ms, waiter)
  end
end

