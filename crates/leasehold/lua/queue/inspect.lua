-- queue/inspect
--
-- Lists the holders and waiters of a lock. Changes nothing.
--
-- Preceded by queue/prelude.
--
-- ARGV[1]  limit  integer from 1; how many holders and waiters to list
--
-- Returns
--   list  kind ('' if the lock is free), used, capacity or 0, now, the number
--         of holders, the number of waiters, and a list with three items for
--         each: 1 (holder) or 2 (waiter, in queue order), its entry, and when
--         its lease or heartbeat ends

local limit = tonumber(ARGV[1])

local alone = state.alone
local from, owners = '(' .. format('%d', now), {}
local waiter_count = call('ZCOUNT', heartbeats, from, '+inf')

local function add(role, owner, ends)
  table.insert(owners, role)
  table.insert(owners, call('HGET', entries, owner) or '')
  table.insert(owners, tonumber(ends))
end

local holder_count = 1
if alone then
  owners = {1, alone.entry, alone.ends}
else
  holder_count = call('ZCOUNT', holders, from, '+inf')
  local held = call('ZRANGEBYSCORE', holders, from, '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
  for at = 1, #held, 2 do
    add(1, held[at], held[at + 1])
  end
end
for _, owner in ipairs(call('ZRANGE', queue, 0, limit - 1)) do
  local ends = tonumber(call('ZSCORE', heartbeats, owner) or 0)
  if ends > now then
    add(2, owner, ends)
  end
end
local used = holder_count > 0 and state.used or 0
return {state.kind or '', used, state.capacity, now, holder_count, waiter_count, owners}
