-- redisson/rw_prelude (prelude)
--
-- What the scripts that change a read-write lock's holders share.
--
-- KEYS[1]  lock   hash; mode, and a field per reader or for the writer
-- KEYS[2]  stem   string; the keys of all readers' entries begin so
-- ARGV[1]  owner  string; client and thread, as Redisson writes them

local lock, stem = KEYS[1], KEYS[2]
local owner = ARGV[1]
local writer = owner .. ':write'

local function entry(reader, number)
  return stem .. ':' .. reader .. ':rwlock_timeout:' .. number
end

-- How long the last of the readers holds it, in milliseconds; 0 when all have expired.
local function readers_left()
  local longest = 0
  local fields = redis.call('HGETALL', lock)
  for i = 1, #fields, 2 do
    for number = tonumber(fields[i + 1]) or 0, 1, -1 do
      longest = math.max(longest, redis.call('PTTL', entry(fields[i], number)))
    end
  end
  return longest
end

