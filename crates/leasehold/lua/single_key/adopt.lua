-- single_key/adopt
--
-- Adopts a lock that was handed over: replaces the owner in the ticket by the
-- caller, with a token above that of the process that handed it over. A ticket
-- therefore gives one holder. Repeated by the same caller, returns a new token.
--
-- KEYS[1]  lock      string; see lua/README.md
-- KEYS[2]  counter   string; the largest token issued so far
-- ARGV[1]  pending   string; 32 hex digits: the owner in the ticket
-- ARGV[2]  value     string; the caller's value
-- ARGV[3]  lease_ms  integer from 1; milliseconds
--
-- Returns
--   n  adopted; the caller's token
--   0  adopted before, expired or revoked; nothing was changed
--   error LEASEHOLD  an argument is out of range; nothing was changed

local lock, counter = KEYS[1], KEYS[2]
local pending, value, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

if not lease_ms or lease_ms < 1 or lease_ms % 1 ~= 0 then
  return redis.error_reply('LEASEHOLD lease_ms is out of range')
end
local found = redis.call('GET', lock) or ''
local given, owner = string.match(found, '^lh1:handover:(%d+) (%x+) ')
if owner ~= pending and found ~= value then
  return 0
end
-- A full server allows the rest only after a write that needs no memory.
redis.call('PEXPIRE', lock, lease_ms)
redis.call('SET', lock, value, 'KEEPTTL')
local token = redis.call('INCR', counter)
if token <= tonumber(given or 0) then
  -- The counter was lost.
  token = given + 1
  redis.call('SET', counter, string.format('%.0f', token))
end
return token
