-- queue/inspect
--
-- Lists who holds the lock and who waits for it. Changes nothing.
--
-- ARGV[1]  most  of how many holders and waiters the entries are wanted, at least 1
--
-- Returns
--   list  kind, or '' where the lock is free; used, capacity or 0, now, the number of holders, the number of waiters,
--         and a list: for each holder, and for each waiter in order: 1 or 2, its entry, when its lease or place ends

local most = tonumber(ARGV[1])

local from, owners = '(' .. digits(now), {}
local waits = call('ZCOUNT', heartbeats, from, '+inf')

local function add(part, owner, ends)
  table.insert(owners, part)
  table.insert(owners, call('HGET', entries, owner) or '')
  table.insert(owners, tonumber(ends))
end

local holding = sole and sole.ends > now and 1 or 0
if sole then
  owners = holding == 1 and {1, sole.entry, sole.ends} or owners
else
  holding = call('ZCOUNT', holders, from, '+inf')
  local held = call('ZRANGEBYSCORE', holders, from, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  for at = 1, #held, 2 do
    add(1, held[at], held[at + 1])
  end
end
for _, owner in ipairs(call('ZRANGE', queue, 0, most - 1)) do
  local ends = tonumber(call('ZSCORE', heartbeats, owner) or 0)
  if ends > now then
    add(2, owner, ends)
  end
end
return {kind or '', holding > 0 and used or 0, capacity, now, holding, waits, owners}
