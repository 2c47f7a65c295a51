-- once/finish
--
-- Records how a run of a job ended, if it is the last run that is recorded.
--
-- KEYS[1]  job     hash; see lua/README.md
-- ARGV[1]  token   string; the fencing token of the run
-- ARGV[2]  report  string; how it ended
-- ARGV[3]  life    number; how long the run is recorded, in milliseconds
--
-- Returns
--   1  recorded
--   0  another run is recorded, or none

local job = KEYS[1]
local token, report, life = ARGV[1], ARGV[2], ARGV[3]

if redis.call('HGET', job, 'token') ~= token then
  return 0
end
redis.call('HSET', job, 'report', report)
redis.call('PEXPIRE', job, life)
return 1
