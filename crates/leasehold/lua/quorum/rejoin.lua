-- quorum/rejoin
--
-- Returns whether a node votes, and lets it rejoin. A restarted node may have
-- forgotten what it granted. It stays in quarantine until every lease from
-- before has ended, and then votes only above the highest token known to a
-- majority of the other nodes.
--
-- Preceded by quorum/prelude.
--
-- KEYS[1]  voter         hash; run: the run id that votes; floor, highest: the
--                        tokens it must exceed and has granted; pending,
--                        since: the run id in quarantine, and its start
-- ARGV[1]  max_lease_ms  integer; the longest lease of the quorum, milliseconds
-- ARGV[2]  floor         integer; 0 only asks
--
-- Returns
--   list  1, highest: the node votes, and knows this token as the highest
--         0, milliseconds, voted: in quarantine for at least this long
--         2, 0, voted: the quarantine is over; the node rejoins when sent a
--         floor
--         voted is 1 if the node voted before it was restarted, and 0 if it
--         never did or has forgotten
--   error LEASEHOLD  an argument is out of range; nothing was changed

local voter = KEYS[1]
local max_lease_ms, floor = tonumber(ARGV[1]), ARGV[2]

local lowest = tonumber(floor)
if not is_integer(max_lease_ms, 0) or not is_integer(lowest, 0) then
  return redis.error_reply('LEASEHOLD an argument is out of range')
end
local known = redis.call('HMGET', voter, 'run', 'highest', 'pending', 'since')
if known[1] == run_id then
  return {1, tonumber(known[2])}
end
local now = math.floor(clock() / 1000)
if known[3] ~= run_id then
  redis.call('HSET', voter, 'pending', run_id, 'since', now)
  known[4] = now
end
local voted = known[1] and 1 or 0
local remaining = math.max(0, tonumber(known[4]) + max_lease_ms - now)
if remaining > 0 then
  return {0, remaining, voted}
end
if lowest == 0 then
  return {2, 0, voted}
end
redis.call('HSET', voter, 'run', run_id, 'floor', floor, 'highest', floor)
redis.call('HDEL', voter, 'pending', 'since')
return {1, lowest}
