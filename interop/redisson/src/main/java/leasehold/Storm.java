package leasehold;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.util.List;
import java.util.Random;
import java.util.UUID;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RScript;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/**
 * Acquires and releases random locks, ten of each kind: {@code storm DIGEST
 * MILLISECONDS SEED KINDS}. A script on the server, loaded by the test, checks
 * exclusion.
 */
final class Storm {
    private final RedissonClient client;
    private final String digest;
    private final long end;
    private final Random random;
    private final String[] kinds;
    private final String id = UUID.randomUUID().toString();
    private long held;

    Storm(RedissonClient client, String[] words) {
        this.client = client;
        digest = words[2];
        end = System.currentTimeMillis() + Long.parseLong(words[3]);
        random = new Random(Long.parseLong(words[4]));
        kinds = words[5].split(",");
    }

    /** Returns the number of acquisitions. */
    String run() throws InterruptedException {
        while (System.currentTimeMillis() < end) {
            String kind = kinds[random.nextInt(kinds.length)];
            String name = (kind.equals("read") || kind.equals("write") ? "rw" : kind) + ":" + random.nextInt(10);
            check(name, "wait", kind, 0);
            switch (kind) {
                case "permits" -> holdPermit(name);
                case "semaphore" -> holdSemaphore(name);
                default -> holdLock(kind, name);
            }
        }
        return "held " + held;
    }

    private void holdLock(String kind, String name) throws InterruptedException {
        RLock lock = Verbs.lock(client, kind, name);
        long token = 0;
        if (lock instanceof RFencedLock fenced) {
            token = fenced.lockAndGetToken();
        } else {
            lock.lock();
        }
        stay(name, kind, token);
        lock.unlock();
    }

    private void holdPermit(String name) throws InterruptedException {
        var permits = client.getPermitExpirableSemaphore(name);
        String permit = permits.acquire(3000, MILLISECONDS);
        stay(name, "permits", 0);
        permits.release(permit);
    }

    private void holdSemaphore(String name) throws InterruptedException {
        var semaphore = client.getSemaphore(name);
        semaphore.acquire();
        stay(name, "semaphore", 0);
        semaphore.release();
    }

    private void stay(String name, String kind, long token) throws InterruptedException {
        check(name, "enter", kind, token);
        held++;
        Thread.sleep(random.nextInt(20));
        check(name, "leave", kind, 0);
    }

    private void check(String name, String step, String kind, long token) {
        client.getScript(StringCodec.INSTANCE).evalSha(RScript.Mode.READ_WRITE, digest, RScript.ReturnType.VALUE,
            List.of("storm:inside:" + name, "storm:last:" + name), step, id, kind, name, String.valueOf(token));
    }
}
