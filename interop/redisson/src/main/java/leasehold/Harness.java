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
 * Does with Redisson's objects what it is told on standard input: {@code THREAD VERB WORDS...}, answered
 * {@code THREAD ANSWER}. Each named thread is one Java thread, so one owner to Redisson, and does one thing after
 * another; different threads answer when they are done.
 */
public final class Harness {
    private static final Map<String, ExecutorService> THREADS = new HashMap<>();

    public static void main(String[] settings) throws Exception {
        RedissonClient client = Redisson.create(config(settings));
        Verbs verbs = new Verbs(client);
        say("main", "ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            String thread = words[0];
            thread(thread).execute(() -> say(thread, answer(verbs, words)));
        }
        System.exit(0);
    }

    /** {@code single|cluster ADDRESSES WATCHDOG_MS FAIR_WAIT_MS PREFIX}; a prefix of {@code -} is none. */
    private static Config config(String[] settings) throws ReflectiveOperationException {
        Config config = new Config();
        config.setLockWatchdogTimeout(Long.parseLong(settings[2]));
        config.setFairLockWaitTimeout(Long.parseLong(settings[3]));
        String[] addresses = settings[1].split(",");
        var servers = switch (settings[0]) {
            case "cluster" -> config.useClusterServers().addNodeAddress(addresses);
            default -> config.useSingleServer().setAddress(addresses[0]).setConnectionMinimumIdleSize(4);
        };
        // A machine that stalls for two seconds makes nothing fail.
        servers.setTimeout(30_000).setSubscriptionTimeout(30_000).setConnectTimeout(30_000);
        if (!settings[4].equals("-")) {
            prefix(servers, settings[4]);
        }
        return config;
    }

    private static ExecutorService thread(String name) {
        return THREADS.computeIfAbsent(name, ignored -> Executors.newSingleThreadExecutor(work -> new Thread(work, name)));
    }

    private static String answer(Verbs verbs, String[] words) {
        try {
            return verbs.perform(words);
        } catch (Exception error) {
            return "error " + error.getClass().getSimpleName() + " " + String.valueOf(error.getMessage()).replace('\n', ' ');
        }
    }

    private static synchronized void say(String thread, String answer) {
        System.out.println(thread + " " + answer);
        System.out.flush();
    }

    /** Maps names by a prefix. By reflection: Redisson 4 moved the interface to another package. */
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
