-- Runs commands if the token is not stale, all in one step.
--
-- KEYS: 1 the key of the fence, in the slot of the data; 2.. the keys of data
-- ARGV: 1 token; then, for each command, its number of words and its words
-- Returns: the commands' replies; the error `STALE` with the stored token if
--   ours is stale
--
-- Tokens are compared as decimal text: Lua's numbers are exact to 53 bits only.
local ours = ARGV[1]
local function is_token(text)
  return text == '0' or (string.match(text, '^[1-9]%d*$') and #text <= 20)
end
if not is_token(ours) then
  return redis.error_reply('ERR the token is no number without leading zeros')
end

-- Nothing is undone after an error, so all commands are checked before the
-- first write. `unpack` fails above 8,000 words, less what is on Lua's stack.
local max, at = 7000, 2
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  if not words or words < 1 or words % 1 ~= 0 or at + words > #ARGV then
    return redis.error_reply('ERR a number of words does not fit its command')
  end
  if words > max then
    return redis.error_reply('ERR a command has more than ' .. max .. ' words')
  end
  at = at + words + 1
end

local seen = redis.call('GET', KEYS[1])
if seen and not is_token(seen) then
  return redis.error_reply('WRONGTYPE the fence holds no token')
end
if seen and (#seen > #ours or (#seen == #ours and seen > ours)) then
  return redis.error_reply('STALE ' .. seen .. ' was used by a later holder')
end
redis.call('SET', KEYS[1], ours)
local replies = {}
at = 2
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  replies[#replies + 1] = redis.call(unpack(ARGV, at + 1, at + words))
  at = at + words + 1
end
return replies
