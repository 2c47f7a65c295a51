-- queue/compare_and_delete
--
-- Deletes a lock that is one plain string, if it is still ours. Used where the server has no command for it
-- (DELEX, DELIFEQ).
--
-- KEYS[1]  lock  string; see lua/README.md
-- ARGV[1]  mark  string; what the holder wrote when it acquired
--
-- Returns
--   1  deleted
--   0  it was not ours, or it has a queue; nothing was changed

local lock = KEYS[1]
local mark = ARGV[1]

if redis.call('GET', lock) ~= mark then
  return 0
end
redis.call('DEL', lock)
return 1
