-- queue/capacity
--
-- Sets the capacity, which then overrides the one in owners' values, and keeps
-- it for a while after the lock was last used. Removes waiters whose weight
-- exceeds it; they learn this by their next heartbeat.
--
-- Preceded by queue/prelude.
--
-- ARGV[1]  kind   string; the kind of the lock
-- ARGV[2]  limit  integer from 1; the capacity from now on
-- ARGV[3]  ttl    integer from 1; how long the capacity is kept
--
-- Returns
--   list  used, now
--   error WRONGTYPE  the lock is of another kind; nothing was changed
--   error LEASEHOLD  an argument is out of range; nothing was changed

local kind, limit, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

if not (in_range(limit, 1) and in_range(ttl, 1)) then
  return redis.error_reply('LEASEHOLD an argument is out of range')
end
evict_expired(state)
if state.kind and state.kind ~= kind and state.used + state.capacity_ttl > 0 then
  return store(state, redis.error_reply('WRONGTYPE the lock is of the kind ' .. state.kind))
end
open_queue(state)
state.kind, state.capacity, state.capacity_ttl, state.is_changed = kind, limit, ttl, true
for _, owner in ipairs(call('ZRANGE', queue, 0, -1)) do
  if tonumber(entry(owner) or 0) > limit then
    remove_waiter(owner)
  end
end
promote(state)
return store(state, {state.used, now})
