-- Runs commands if the token is not stale, all in one step.
--
-- KEYS: 1 the key of the fence, in the slot of the data; 2.. the keys of data
-- ARGV: 1 token; then, for each command, its number of words and its words
-- Returns: the stored token and the replies; no replies if ours is stale
--
-- Tokens are compared as decimal text: Lua's numbers are exact to 53 bits only.
local ours, seen = ARGV[1], redis.call('GET', KEYS[1])
if seen and not string.match(seen, '^[1-9]%d*$') and seen ~= '0' then
  return redis.error_reply('WRONGTYPE the fence holds no token')
end
if seen and (#seen > #ours or (#seen == #ours and seen > ours)) then
  return {seen, {}}
end
redis.call('SET', KEYS[1], ours)
local replies, at = {}, 2
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  replies[#replies + 1] = redis.call(unpack(ARGV, at + 1, at + words))
  at = at + words + 1
end
return {ours, replies}
