-- once/finish
--
-- Records how a run of a job ended, if it is the last run that is recorded.
--
-- KEYS[1]  job     hash; see lua/README.md
-- ARGV[1]  token   string; the fencing token of the run
-- ARGV[2]  report  string; how it ended
-- ARGV[3]  life    integer from 1; how long to record the run, in milliseconds
--
-- Returns
--   1  recorded
--   0  another run is recorded, or none
--   error LEASEHOLD  an argument is out of range; nothing was changed

local job = KEYS[1]
local token, report, life = ARGV[1], ARGV[2], tonumber(ARGV[3])

if not life or life < 1 or life % 1 ~= 0 or life > 2 ^ 53 then
  return redis.error_reply('LEASEHOLD life is out of range')
end
if redis.call('HGET', job, 'token') ~= token then
  return 0
end
redis.call('HSET', job, 'report', report)
redis.call('PEXPIRE', job, life)
return 1
