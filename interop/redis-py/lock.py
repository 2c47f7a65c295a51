"""Holds and releases redis-py's Lock, a word at a time: "acquire" and "release" are answered "true" or "false". Its
arguments are the port and the key."""

import sys

import redis

lock = redis.Redis(port=int(sys.argv[1])).lock(sys.argv[2], timeout=30)
for word in sys.stdin:
    if word == "acquire\n":
        done = lock.acquire(blocking=False)
    else:
        try:
            lock.release()
            done = True
        except redis.exceptions.LockError:
            done = False
    print("true" if done else "false", flush=True)
