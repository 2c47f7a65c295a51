-- redisson/rw_prelude (prelude)
--
-- Precedes the scripts that change the holders of a read-write lock.
--
-- KEYS[1]  lock   hash; mode, and a field per reader or for the writer
-- KEYS[2]  stem   string; prefix of the keys of all readers' holds
-- ARGV[1]  owner  string; client and thread, in Redisson's notation

local lock, stem = KEYS[1], KEYS[2]
local owner = ARGV[1]
local writer = owner .. ':write'

-- The key of one of a reader's holds.
local function hold(reader, number)
  return stem .. ':' .. reader .. ':rwlock_timeout:' .. number
end

-- Returns how long the last reader still holds the lock, in milliseconds; 0
-- when all have expired.
local function readers_remaining()
  local longest = 0
  local fields = redis.call('HGETALL', lock)
  for i = 1, #fields, 2 do
    for number = tonumber(fields[i + 1]) or 0, 1, -1 do
      longest = math.max(longest, redis.call('PTTL', hold(fields[i], number)))
    end
  end
  return longest
end

