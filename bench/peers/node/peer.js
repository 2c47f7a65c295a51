// redlock (Node.js) on one server; see ../README.md.
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import Redlock from "redlock";

const redlock = new Redlock([new Redis(Number(process.argv[2]))], { retryCount: -1 });

async function pairs(prefix, tasks, count) {
  const work = async (task) => {
    for (let i = 0; i < Math.floor(count / tasks); i++) {
      const lock = await redlock.acquire([`${prefix}:${task}`], 30_000);
      await lock.release();
    }
  };
  await Promise.all(Array.from({ length: tasks }, (_, task) => work(task)));
}

async function hand(name, count) {
  const times = [];
  for (let i = 0; i < count; i++) {
    const lock = await redlock.acquire([name], 30_000);
    const acquired = process.hrtime.bigint();
    await sleep(4);
    times.push(`${acquired} ${process.hrtime.bigint()}`);
    await lock.release();
    await sleep(1);
  }
  console.log(times.join("\n"));
}

console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  const [command, name, ...numbers] = line.split(" ");
  await (command === "pairs" ? pairs : hand)(name, ...numbers.map(Number));
  console.log("done");
}
process.exit(0);
