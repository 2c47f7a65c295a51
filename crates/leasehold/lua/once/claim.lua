-- once/claim
--
-- Claims a tick for a run of a job, unless a run of this tick or of a later one
-- is recorded, or the run was cancelled. A run can repeat its claim. Ticks are
-- compared by their start, because the job's period can change between two
-- runs.
--
-- KEYS[1]  job      hash; see lua/README.md
-- ARGV[1]  tick     integer from 0; the number of periods from 1970 to the tick
-- ARGV[2]  period   integer from 1; the period, in milliseconds
-- ARGV[3]  token    integer from 1; the fencing token of the run, which
--                   identifies it
-- ARGV[4]  process  string; the runner: PID HOST NOTE
-- ARGV[5]  life     integer from 1; how long to record the run, in milliseconds
--
-- Returns
--   1  claimed, now or by an earlier call
--   0  a run of this tick or of a later one is recorded, or this run, or one
--      with a larger token, was cancelled
--   n  below 0: the tick starts -n milliseconds from now, more than a period
--   error LEASEHOLD  an argument is out of range; nothing was changed

local job = KEYS[1]
local tick, period, token = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local process, life = ARGV[4], tonumber(ARGV[5])
local FIELDS = {'tick', 'period', 'token', 'runner', 'report'}

local function digits(number)
  return string.format('%.0f', number)
end

local function is_integer(number, least)
  return number and number >= least and number % 1 == 0 and number <= 2 ^ 53
end

if not is_integer(tick, 0) or not is_integer(period, 1) or not is_integer(life, 1)
  or not is_integer(tick * period, 0) or not tonumber(token) or not process then
  return redis.error_reply('LEASEHOLD an argument is out of range')
end
local last = redis.call('HMGET', job, unpack(FIELDS))
if last[3] == token then
  return 1
end
local cancelled = tonumber(redis.call('HGET', job, 'cancelled')) or 0
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- A tick further ahead would keep all other hosts from running the job.
if tick * period > now + period then
  return now - tick * period
end
if tonumber(token) <= cancelled or (last[1] and last[1] * last[2] >= tick * period) then
  return 0
end
redis.call('DEL', job)
redis.call('HSET', job, 'tick', digits(tick), 'period', digits(period), 'token', token,
  'runner', digits(now) .. ' ' .. process, 'cancelled', digits(cancelled))
-- once/forget restores the run before, whose tick must not run again.
for i, field in ipairs(FIELDS) do
  if last[i] then
    redis.call('HSET', job, 'before:' .. field, last[i])
  end
end
redis.call('PEXPIRE', job, life)
return 1
