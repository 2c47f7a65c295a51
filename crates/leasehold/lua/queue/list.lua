-- queue/list
--
-- Says who holds the lock and who waits for it. Changes nothing.
--
-- ARGV[1]  most  of how many holders and waiters the particulars are wanted, at least 1
--
-- Returns
--   list  kind, or '' where it is no lock of ours, or 'none' where there is nothing; used, capacity or 0, now, how many hold, how many wait, what is left of a latch or -1,
--         and a list: for each holder, and for each waiter in order: 1 or 2, its entry, when its lease or place ends

local most = tonumber(ARGV[1])

local from, left = '(' .. digits(now), tonumber(redis.call('HGET', lock, 'left') or -1)
local holding = redis.call('ZCOUNT', holders, from, '+inf')
local waiting = redis.call('ZCOUNT', alive, from, '+inf')
local people = {}

local function add(part, owner, ends)
  table.insert(people, part)
  table.insert(people, redis.call('HGET', lock, owner) or '')
  table.insert(people, tonumber(ends))
end

local held = redis.call('ZRANGEBYSCORE', holders, from, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
for at = 1, #held, 2 do
  add(1, held[at], held[at + 1])
end
for _, owner in ipairs(redis.call('ZRANGE', line, 0, most - 1)) do
  local ends = tonumber(redis.call('ZSCORE', alive, owner) or 0)
  if ends > now then
    add(2, owner, ends)
  end
end
kind = kind or redis.call('EXISTS', lock) == 0 and 'none' or ''
return {kind, holding > 0 and used or 0, capacity, now, holding, waiting, left, people}
