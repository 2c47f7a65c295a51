// Holds and releases a lock of redlock on one server, a word at a time: "acquire" and "release" are answered "true" or
// "false". Its arguments are the port and the key.
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
