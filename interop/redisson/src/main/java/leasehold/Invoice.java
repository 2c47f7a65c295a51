package leasehold;

import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * The Java side of the example {@code examples/redisson.rs}: holds the same lock
 * until Enter is pressed.
 */
public final class Invoice {
    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress(args.length > 0 ? args[0] : "redis://127.0.0.1:6379");
        RedissonClient redisson = Redisson.create(config);
        RLock invoice = redisson.getLock("invoice:42");

        if (!invoice.tryLock()) {
            System.out.println("waiting");
            invoice.lock();
        }
        try {
            System.out.println("acquired");
            System.in.read();
        } finally {
            invoice.unlock();
            System.out.println("released");
        }

        redisson.shutdown();
    }
}
