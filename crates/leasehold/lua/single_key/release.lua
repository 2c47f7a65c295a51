-- single_key/release
--
-- Deletes a lock if it is still ours and wakes those who wait for it. Used where the server has no
-- command for it (DELEX, DELIFEQ).
--
-- KEYS[1]  lock     string; see lua/README.md
-- ARGV[1]  mark     string; what the holder wrote when it acquired
-- ARGV[2]  channel  string; where waiters listen
--
-- Returns
--   n  deleted; one more than the connections that were told
--   0  it was not ours; nothing was changed

local lock = KEYS[1]
local mark, channel = ARGV[1], ARGV[2]

if redis.call('GET', lock) ~= mark then
  return 0
end
redis.call('DEL', lock)
-- A refused publish must not fail what is done: waiters then find it by polling.
local notified = redis.pcall('SPUBLISH', channel, '')
return (tonumber(notified) or 0) + 1
