-- election/announce
--
-- Records the term of a new leader and notifies followers. Terms are recorded
-- in the order of their epochs, so a leader that was delayed records nothing.
--
-- KEYS[1]  terms    sorted set; see lua/README.md
-- ARGV[1]  epoch    number; the fencing token of the leader
-- ARGV[2]  term     string; the term, which begins with the epoch
-- ARGV[3]  limit    number; how many terms are kept
-- ARGV[4]  life     number; how long they are kept, in milliseconds
-- ARGV[5]  channel  string; the followers' channel
--
-- Returns
--   1  recorded, now or by an earlier call
--   0  a later term is recorded

local terms = KEYS[1]
local epoch, term, limit, life, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local last = redis.call('ZRANGE', terms, -1, -1, 'WITHSCORES')
if last[2] and tonumber(last[2]) >= tonumber(epoch) then
  if last[1] == term then
    return 1
  end
  return 0
end
redis.call('ZADD', terms, epoch, term)
if redis.call('ZCARD', terms) > tonumber(limit) then
  redis.call('ZPOPMIN', terms)
end
redis.call('PEXPIRE', terms, life)
-- A refused publish must not fail the call: followers then rely on polls.
if type(redis.pcall('SPUBLISH', channel, '')) == 'table' then
  redis.pcall('PUBLISH', channel, '')
end
return 1
