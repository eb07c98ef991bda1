// What a Node program makes of our payloads, and sends to us. It tells what it saw as one line of JSON.
//
//     node --harmony-json-parse-with-source payloads.mjs bullmq6 /path/of/the/unix/socket prefix queue
import { createRequire } from "node:module";
import { inflateSync } from "node:zlib";

const [version, path, prefix, name] = process.argv.slice(2);
const require = createRequire(import.meta.url);
const { Queue } = require(version);
const { Redis } = require("ioredis");

const queue = new Queue(name, { connection: { path, maxRetriesPerRequest: null }, prefix });
const redis = new Redis({ path });
const inflated = ({ steps, body }) => {
  if (steps.length !== 1 || steps[0].name !== "zlib") throw new Error(`unknown steps: ${JSON.stringify(steps)}`);
  return JSON.parse(inflateSync(Buffer.from(body, "base64")));
};

// As BullMQ gives it: an object, like any other.
const compressed = (await queue.getJob("compressed")).data;
const encrypted = (await queue.getJob("encrypted")).data;
const big = (await queue.getJob("big")).data;

// Every digit, from the text that stands there.
const text = await redis.hget(`${prefix}:${name}:big`, "data");
const exact = JSON.parse(text, (key, value, { source } = {}) => (typeof value === "number" ? BigInt(source) : value));

const number = exact.number;
await queue.add("double", { number: JSON.rawJSON(String(number)) }, { jobId: "raw" });
await queue.add("double", { number: String(number) }, { jobId: "text" });
await queue.add("greet", { name: "Ada", from: "Node" }, { jobId: "plain" });

console.log(JSON.stringify({
  keys: [Object.keys(compressed), Object.keys(encrypted)],
  inflated: inflated(compressed.$echomq),
  steps: encrypted.$echomq.steps.map((step) => step.name),
  rounded: big.number,
  exact: String(number),
}));
await queue.close();
redis.disconnect();
