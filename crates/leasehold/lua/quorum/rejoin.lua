-- quorum/rejoin
--
-- Says whether a node may vote, and lets it. Every start of a server has a run id of its own, and a server
-- that was started again may have forgotten what it granted: it does not vote until every lease from before
-- has ended, and then not below the highest token that a majority of the others knows of.
--
-- KEYS[1]  standing    hash; run: the start that may vote, floor and highest: tokens it must exceed and
--                      has granted; asked, since: the start that waits, and from when on
-- ARGV[1]  longest_ms  integer; the longest lease there is; milliseconds
-- ARGV[2]  floor       integer; 0 only to ask
--
-- Returns
--   list  1, highest: it votes, and this is the highest token it knows of
--         0, milliseconds: it does not, for so long at least
--         2, 0: it may be let in when it is told the floor
--   error LEASEHOLD  an argument is out of its range; nothing was changed

local standing = KEYS[1]
local longest_ms, floor = tonumber(ARGV[1]), ARGV[2]
local number = tonumber(floor)

if not longest_ms or longest_ms < 0 or not number or number < 0 or number >= 2 ^ 53 then
  return redis.error_reply('LEASEHOLD an argument is out of its range')
end
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local known = redis.call('HMGET', standing, 'run', 'highest', 'asked', 'since')
if known[1] == run then
  return {1, tonumber(known[2])}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if known[3] ~= run then
  redis.call('HSET', standing, 'asked', run, 'since', now)
  known[4] = now
end
local left = math.max(0, tonumber(known[4]) + longest_ms - now)
if left > 0 then
  return {0, left}
end
if number == 0 then
  return {2, 0}
end
redis.call('HSET', standing, 'run', run, 'floor', floor, 'highest', floor)
redis.call('HDEL', standing, 'asked', 'since')
return {1, number}
