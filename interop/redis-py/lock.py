"""Acquires and releases redis-py's Lock.

Reads the commands "acquire" and "release" from standard input, one per line,
and prints "true" or "false" for each. The arguments are the port and the key.
"""

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
