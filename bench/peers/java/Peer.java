import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson's lock or fair lock on one server; see ../README.md. */
public final class Peer {
    private static RedissonClient client;
    private static boolean fair;

    public static void main(String[] arguments) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://127.0.0.1:" + arguments[0]);
        client = Redisson.create(config);
        fair = arguments[1].equals("fair");
        System.out.println("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("pairs")) {
                pairs(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]));
            } else {
                hand(words[1], Integer.parseInt(words[2]));
            }
            System.out.println("done");
        }
        System.exit(0);
    }

    private static RLock lock(String name) {
        return fair ? client.getFairLock(name) : client.getLock(name);
    }

    private static void pairs(String prefix, int tasks, int count) throws InterruptedException {
        List<Thread> threads = new ArrayList<>();
        for (int task = 0; task < tasks; task++) {
            RLock lock = lock(prefix + ":" + task);
            Thread thread = new Thread(() -> {
                for (int i = 0; i < count / tasks; i++) {
                    lock.lock();
                    lock.unlock();
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private static void hand(String name, int count) throws InterruptedException {
        RLock lock = lock(name);
        long[][] times = new long[count][2];
        for (int i = 0; i < count; i++) {
            lock.lock();
            times[i][0] = System.nanoTime();
            Thread.sleep(4);
            times[i][1] = System.nanoTime();
            lock.unlock();
            Thread.sleep(1);
        }
        for (long[] time : times) {
            System.out.println(time[0] + " " + time[1]);
        }
    }
}
