-- once/claim
--
-- Claims a tick for a run of a job, unless a run of this tick or of a later one
-- is recorded. A run can repeat its claim.
--
-- KEYS[1]  job     hash; see lua/README.md
-- ARGV[1]  tick    number; the tick
-- ARGV[2]  token   string; the fencing token of the run, which identifies it
-- ARGV[3]  runner  string; the runner
-- ARGV[4]  life    number; how long the run is recorded, in milliseconds
--
-- Returns
--   1  claimed, now or by an earlier call
--   0  a run of this tick or of a later one is recorded

local job = KEYS[1]
local tick, token, runner, life = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local last = redis.call('HMGET', job, 'tick', 'token')
if last[2] == token then
  return 1
end
if last[1] and tonumber(last[1]) >= tonumber(tick) then
  return 0
end
redis.call('DEL', job)
redis.call('HSET', job, 'tick', tick, 'token', token, 'runner', runner)
redis.call('PEXPIRE', job, life)
return 1
