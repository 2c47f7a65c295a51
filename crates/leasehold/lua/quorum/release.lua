-- quorum/release
--
-- Deletes a lock on one of several nodes if it is still ours, and tells those who wait for it.
--
-- KEYS[1]  lock     string; see lua/README.md
-- ARGV[1]  mark     string; what the holder wrote when it acquired
-- ARGV[2]  channel  string; where waiters listen
-- ARGV[3]  which    string; the same at all nodes, and another for every release
--
-- Returns
--   1  deleted
--   0  it was not ours; nothing was changed

local lock = KEYS[1]
local mark, channel, which = ARGV[1], ARGV[2], ARGV[3]

if redis.call('GET', lock) ~= mark then
  return 0
end
redis.call('DEL', lock)
-- A refused publish must not fail what is done: waiters then find it by polling.
redis.pcall('SPUBLISH', channel, which)
return 1
