// Acquires and releases a redlock lock on one server. Reads the commands
// "acquire" and "release" from standard input, one per line, and prints "true"
// or "false" for each. The arguments are the port and the key.
import { createInterface } from "node:readline";
import { Redis } from "ioredis";
import Redlock from "redlock";

const [port, key] = process.argv.slice(2);
const redlock = new Redlock([new Redis(Number(port))], { retryCount: 0 });
let lock;

for await (const word of createInterface({ input: process.stdin })) {
  const done = word === "acquire"
    ? redlock.acquire([key], 30_000).then((acquired) => { lock = acquired; })
    : lock.release();
  console.log(await done.then(() => true, () => false));
}
process.exit(0);
