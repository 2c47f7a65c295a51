-- redisson/semaphore_release
--
-- Gives permits back and wakes those who wait, once under one note; or cancels an acquisition of which nobody knows
-- whether it took any.
--
-- KEYS[1]  available  integer; how many there are; absent like none
-- KEYS[2]  note       string; what became of this acquisition, for those who ask again
-- KEYS[3]  channel    string; where waiters listen
-- ARGV[1]  given      integer from 1; how many
-- ARGV[2]  noted_ms   integer from 1; how long it is noted
-- ARGV[3]  publish    string; the command by which this fleet announces
-- ARGV[4]  certain    string; 1 if they are held, 0 if only the note can tell
--
-- Returns
--   1  they are given back, now or by an earlier request
--   0  there was nothing to give back

local available, note, channel = KEYS[1], KEYS[2], KEYS[3]
local given, noted_ms, publish, certain = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local noted = redis.call('GET', note)
-- A write that needs no memory comes first: what follows is then allowed on a full server.
redis.call('DEL', note)
redis.call('SET', note, 0, 'PX', noted_ms)
if noted == '0' then
  return 1
end
if not noted and certain == '0' then
  return 0
end
redis.pcall(publish, channel, redis.call('INCRBY', available, given))
return 1
