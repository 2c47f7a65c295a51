package leasehold;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.util.List;
import java.util.Set;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/**
 * The commands of the harness: short names of Redisson's methods. Times are in
 * milliseconds.
 */
final class Verbs {
    /** The classes in which Redisson's threads park. */
    private static final Set<String> LATCHES =
        Set.of("java.util.concurrent.Semaphore", "org.redisson.misc.ReclosableLatch");

    private final RedissonClient client;

    Verbs(RedissonClient client) {
        this.client = client;
    }

    String run(String[] words) throws Exception {
        String name = words.length > 3 ? words[3] : "";
        return switch (words[1]) {
            case "lock" -> ofLock(words, lock(words[2], name));
            case "fenced" -> ofFenced(words, name);
            case "semaphore" -> ofSemaphore(words, name);
            case "permits" -> ofPermits(words, name);
            case "latch" -> ofLatch(words, name);
            case "waits" -> String.valueOf(waits(words[2]));
            case "storm" -> new Storm(client, words).run();
            default -> throw new IllegalArgumentException(words[1]);
        };
    }

    /**
     * {@code waits THREAD}: returns whether a thread is parked until a message
     * arrives. Redisson may miss a message that arrives just before.
     */
    private static boolean waits(String thread) {
        return Thread.getAllStackTraces().entrySet().stream()
            .filter(entry -> entry.getKey().getName().equals(thread))
            .map(entry -> List.of(entry.getValue()))
            .anyMatch(stack -> stack.get(0).getMethodName().equals("park")
                && stack.stream().map(StackTraceElement::getClassName).anyMatch(LATCHES::contains));
    }

    /** {@code lock KIND/METHOD NAME ARGUMENTS...}. */
    private String ofLock(String[] words, RLock lock) throws InterruptedException {
        String method = words[2].substring(words[2].indexOf('/') + 1);
        return String.valueOf(switch (method) {
            case "lock" -> {
                lock.lock();
                yield "ok";
            }
            case "lease" -> {
                lock.lock(number(words[4]), MILLISECONDS);
                yield "ok";
            }
            case "try" -> lock.tryLock();
            case "wait" -> lock.tryLock(number(words[4]), MILLISECONDS);
            case "wait-lease" -> lock.tryLock(number(words[4]), number(words[5]), MILLISECONDS);
            case "unlock" -> {
                lock.unlock();
                yield "ok";
            }
            case "force" -> lock.forceUnlock();
            case "locked" -> lock.isLocked();
            case "held" -> lock.isHeldByCurrentThread();
            case "count" -> lock.getHoldCount();
            case "left" -> lock.remainTimeToLive();
            case "thread" -> Thread.currentThread().getId();
            default -> throw new IllegalArgumentException(method);
        });
    }

    private RLock lock(String word, String name) {
        return lock(client, word.substring(0, word.indexOf('/')), name);
    }

    static RLock lock(RedissonClient client, String kind, String name) {
        return switch (kind) {
            case "lock" -> client.getLock(name);
            case "fenced" -> client.getFencedLock(name);
            case "fair" -> client.getFairLock(name);
            case "spin" -> client.getSpinLock(name);
            case "read" -> client.getReadWriteLock(name).readLock();
            case "write" -> client.getReadWriteLock(name).writeLock();
            default -> throw new IllegalArgumentException(kind);
        };
    }

    private String ofFenced(String[] words, String name) {
        var lock = client.getFencedLock(name);
        return String.valueOf(switch (words[2]) {
            case "lock" -> lock.lockAndGetToken();
            case "wait" -> lock.tryLockAndGetToken(number(words[4]), MILLISECONDS);
            case "token" -> lock.getToken();
            default -> throw new IllegalArgumentException(words[2]);
        });
    }

    private String ofSemaphore(String[] words, String name) throws InterruptedException {
        var semaphore = client.getSemaphore(name);
        int count = words.length > 4 ? (int) number(words[4]) : 1;
        return String.valueOf(switch (words[2]) {
            case "set" -> semaphore.trySetPermits(count);
            case "acquire" -> {
                semaphore.acquire(count);
                yield "ok";
            }
            case "try" -> semaphore.tryAcquire(count);
            case "release" -> {
                semaphore.release(count);
                yield "ok";
            }
            case "available" -> semaphore.availablePermits();
            case "drain" -> semaphore.drainPermits();
            case "add" -> {
                semaphore.addPermits(count);
                yield "ok";
            }
            default -> throw new IllegalArgumentException(words[2]);
        });
    }

    private String ofPermits(String[] words, String name) throws InterruptedException {
        var semaphore = client.getPermitExpirableSemaphore(name);
        return String.valueOf(switch (words[2]) {
            case "set" -> semaphore.trySetPermits((int) number(words[4]));
            case "acquire" -> semaphore.acquire(number(words[4]), MILLISECONDS);
            case "acquire-forever" -> semaphore.acquire();
            case "try" -> semaphore.tryAcquire(number(words[4]), number(words[5]), MILLISECONDS);
            case "release" -> semaphore.tryRelease(words[4]);
            case "extend" -> semaphore.updateLeaseTime(words[4], number(words[5]), MILLISECONDS);
            case "available" -> semaphore.availablePermits();
            case "acquired" -> semaphore.acquiredPermits();
            default -> throw new IllegalArgumentException(words[2]);
        });
    }

    private String ofLatch(String[] words, String name) throws InterruptedException {
        var latch = client.getCountDownLatch(name);
        return String.valueOf(switch (words[2]) {
            case "set" -> latch.trySetCount(number(words[4]));
            case "down" -> {
                latch.countDown();
                yield "ok";
            }
            case "await" -> latch.await(number(words[4]), MILLISECONDS);
            case "count" -> latch.getCount();
            case "delete" -> latch.delete();
            default -> throw new IllegalArgumentException(words[2]);
        });
    }

    private static long number(String word) {
        return Long.parseLong(word);
    }
}
