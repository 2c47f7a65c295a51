-- quorum/prelude (prelude)
--
-- Precedes every quorum script that depends on the node's vote. A server has a
-- new run id after each start, so a node votes only while `run` in its voter
-- hash is this id.

local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')

-- Whether `number` is an integer from `min`, exact in a double.
local function is_integer(number, min)
  return number and number >= min and number < 2 ^ 53 and number % 1 == 0
end

-- The node's clock in microseconds.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

