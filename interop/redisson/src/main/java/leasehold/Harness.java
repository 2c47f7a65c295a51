package leasehold;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Runs commands on Redisson's objects.
 *
 * <p>Reads {@code THREAD COMMAND WORDS...} from standard input, and prints
 * {@code THREAD RESPONSE}. Each named thread is one Java thread, and therefore
 * one owner to Redisson. A thread runs its commands in order; different threads
 * run concurrently.
 */
public final class Harness {
    private static final Map<String, ExecutorService> THREADS = new HashMap<>();

    public static void main(String[] settings) throws Exception {
        RedissonClient client = Redisson.create(config(settings));
        Verbs verbs = new Verbs(client);
        respond("main", "ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            String thread = words[0];
            thread(thread).execute(() -> respond(thread, response(verbs, words)));
        }
        System.exit(0);
    }

    /**
     * Parses {@code single|cluster ADDRESSES WATCHDOG_MS FAIR_WAIT_MS PREFIX}.
     * The prefix {@code -} means none.
     */
    private static Config config(String[] settings) throws ReflectiveOperationException {
        Config config = new Config();
        config.setLockWatchdogTimeout(Long.parseLong(settings[2]));
        config.setFairLockWaitTimeout(Long.parseLong(settings[3]));
        String[] addresses = settings[1].split(",");
        var servers = switch (settings[0]) {
            case "cluster" -> config.useClusterServers().addNodeAddress(addresses);
            default -> config.useSingleServer().setAddress(addresses[0]).setConnectionMinimumIdleSize(4);
        };
        // Tolerates a stalled machine.
        servers.setTimeout(30_000).setSubscriptionTimeout(30_000).setConnectTimeout(30_000);
        if (!settings[4].equals("-")) {
            prefix(servers, settings[4]);
        }
        return config;
    }

    private static ExecutorService thread(String name) {
        return THREADS.computeIfAbsent(name, ignored -> Executors.newSingleThreadExecutor(work -> new Thread(work, name)));
    }

    private static String response(Verbs verbs, String[] words) {
        try {
            return verbs.run(words);
        } catch (Exception error) {
            return "error " + error.getClass().getSimpleName() + " " + String.valueOf(error.getMessage()).replace('\n', ' ');
        }
    }

    private static synchronized void respond(String thread, String response) {
        System.out.println(thread + " " + response);
        System.out.flush();
    }

    /**
     * Sets a name mapper that adds a prefix. Uses reflection, since Redisson 4
     * moved the interface to another package.
     */
    private static void prefix(Object servers, String prefix) throws ReflectiveOperationException {
        for (Method method : servers.getClass().getMethods()) {
            if (!method.getName().equals("setNameMapper")) {
                continue;
            }
            Class<?> type = method.getParameterTypes()[0];
            InvocationHandler mapper = (proxy, called, names) -> switch (called.getName()) {
                case "map" -> prefix + names[0];
                case "unmap" -> ((String) names[0]).substring(prefix.length());
                default -> called.getName();
            };
            method.invoke(servers, Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, mapper));
            return;
        }
    }
}
