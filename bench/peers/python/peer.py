"""redis-py's Lock on one server; see ../README.md."""

import sys
import threading
import time

import redis

client = redis.Redis(port=int(sys.argv[1]))


def pairs(prefix, tasks, count):
    def work(task):
        lock = client.lock(f"{prefix}:{task}", timeout=30)
        for _ in range(count // tasks):
            lock.acquire()
            lock.release()

    threads = [threading.Thread(target=work, args=(task,)) for task in range(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def hand(name, count):
    lock = client.lock(name, timeout=30)
    times = []
    for _ in range(count):
        lock.acquire()
        acquired = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        time.sleep(0.004)
        times.append((acquired, time.clock_gettime_ns(time.CLOCK_MONOTONIC)))
        lock.release()
        time.sleep(0.001)
    for acquired, released in times:
        print(acquired, released)


print("ready", flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "pairs":
        pairs(words[1], int(words[2]), int(words[3]))
    else:
        hand(words[1], int(words[2]))
    print("done", flush=True)
