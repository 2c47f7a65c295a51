-- redisson/semaphore_acquire
--
-- Takes permits if there are so many. Asked again under the same note it takes no more, and after a cancel none.
--
-- KEYS[1]  available  integer; how many there are; absent like none
-- KEYS[2]  note       string; what became of this acquisition, for those who ask again
-- ARGV[1]  wanted     integer from 1; how many
-- ARGV[2]  noted_ms   integer from 1; how long it is noted
--
-- Returns
--   1  they are ours
--   0  there are not so many, or it was cancelled; nothing was changed

local available, note = KEYS[1], KEYS[2]
local wanted, noted_ms = tonumber(ARGV[1]), ARGV[2]

local noted = redis.call('GET', note)
if noted == '1' then
  return 1
end
local there = redis.call('GET', available)
if noted or not there or tonumber(there) < wanted then
  return 0
end
redis.call('SET', note, 1, 'PX', noted_ms)
redis.call('DECRBY', available, wanted)
return 1
