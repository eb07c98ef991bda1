// Node's BullMQ on the far side of a test. Reads one command a line from its standard input, {"n": 1, "op": …, …}, and
// answers each, in any order, with {"n": 1, "ok": …} or {"n": 1, "error": {…}}. What happens without being asked for is
// told as {"news": …, …}. It ends with its standard input, and so with the process that started it.
//
//     node peer.mjs bullmq6 /path/of/the/unix/socket [by how many milliseconds its clock is ahead]
import Module, { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [version, path, ahead] = process.argv.slice(2);

if (ahead) {
  const Real = Date;
  const now = () => Real.now() + Number(ahead);
  globalThis.Date = class extends Real {
    constructor(...given) {
      super(...(given.length ? given : [now()]));
    }
    static now = now;
  };
}

// The dashboard asks for plain "bullmq"; it gets the version under test.
const resolve = Module._resolveFilename;
Module._resolveFilename = function (request, ...rest) {
  return resolve.call(this, request.replace(/^bullmq(?=$|\/)/, version), ...rest);
};
const require = createRequire(import.meta.url);
const {
  FlowProducer, Queue, QueueEvents, QueueEventsProducer, UnrecoverableError, DelayedError, Worker,
} = require(version);
const { Redis } = require("ioredis");

const connection = { path, maxRetriesPerRequest: null };
let telemetry; // once `trace` was called
let spans;
const send = (line) => process.stdout.write(JSON.stringify(line) + "\n");

// -- what is open -----------------------------------------------------------------------------------------------------

const open = new Map(); // key → a Queue, QueueEvents, FlowProducer or Worker
const gates = new Map(); // job id → lets a handler go on

async function get(kind, prefix, name, make) {
  const key = `${kind} ${prefix} ${name}`;
  if (!open.has(key)) {
    const made = make();
    made.on("error", (error) => send({ news: "error", where: kind, message: String(error.message) }));
    open.set(key, made);
  }
  await open.get(key).waitUntilReady();
  return open.get(key);
}

const queueOf = ({ prefix, queue }) => get("queue", prefix, queue, () => new Queue(queue, { connection, prefix, telemetry }));
const flowsOf = ({ prefix }) => get("flows", prefix, "", () => new FlowProducer({ connection, prefix }));

async function eventsOf({ prefix, queue, custom = [] }) {
  // From where the stream ends now: with its default it misses what happens before its first read is on the way.
  const redis = new Redis({ path });
  const [last] = await redis.xrevrange(`${prefix}:${queue}:events`, "+", "-", "COUNT", 1);
  redis.disconnect();
  return get("events", prefix, queue, () => {
    const events = new QueueEvents(queue, { connection, prefix, lastEventId: last ? last[0] : "0-0" });
    for (const name of [...EVENTS, ...custom]) {
      // `drained` comes with the id alone
      events.on(name, (args, id) => send({ news: "event", queue, event: name, ...(id ? { args, id } : { args: {}, id: args }) }));
    }
    return events;
  });
}

const EVENTS = [
  "added", "waiting", "active", "completed", "failed", "delayed", "progress", "stalled", "removed", "drained", "paused",
  "resumed", "duplicated", "deduplicated", "waiting-children", "retries-exhausted", "cleaned",
];

async function jobOf(given) {
  const job = await (await queueOf(given)).getJob(given.id);
  if (!job) throw new Error(`no job ${given.id}`);
  return job;
}

// -- handlers: a job is handled as its name says, by the same rules as in tests/interop/handlers.py ---------------------

const handlers = {
  nothing: async () => undefined,
  echo: async (job) => job.data,
  outcome: async (job) => job.data.result,
  value: async (job) => job.data.value,
  async fail(job) {
    if (job.attemptsMade < (job.data.times ?? Infinity)) throw new Error(job.data.reason ?? "as planned");
    return "at last";
  },
  unrecoverable: async (job) => {
    throw new UnrecoverableError(job.data.reason);
  },
  async slow(job) {
    await new Promise((done) => setTimeout(done, job.data.seconds * 1000));
    return "slept";
  },
  hang: (job) => new Promise((done) => gates.set(job.id, done)),
  children: async (job) => job.getChildrenValues(),
  async later(job, token) {
    if (job.attemptsStarted > 1) return "later";
    await job.moveToDelayed(Date.now() + job.data.seconds * 1000, token);
    throw new DelayedError();
  },
  async limited(job, token, worker) {
    if (job.attemptsStarted > 1) return "limited";
    await worker.rateLimit(job.data.seconds * 1000);
    throw Worker.RateLimitError();
  },
  async effect(job) {
    // Asks the far side, which owns the effects and applies each key once.
    await new Promise((done) => setTimeout(done, job.data.seconds * 1000));
    if (job.attemptsMade < job.data.fails) throw new Error("as planned");
    await new Promise((done) => {
      gates.set(job.id, done);
      send({ news: "effect", id: job.id, key: job.data.key });
    });
    return job.data.key;
  },
};

async function handle(worker, handle, job, token) {
  const about = { worker: handle, id: job.id, name: job.name, started: job.attemptsStarted, made: job.attemptsMade, data: job.data };
  send({ news: "start", ...about });
  try {
    const handler = handlers[job.name];
    if (!handler) throw new UnrecoverableError(`no handler ${job.name}`);
    const value = await handler(job, token, worker);
    send({ news: "return", ...about });
    return value;
  } catch (error) {
    send({ news: "throw", ...about, message: error.message });
    throw error;
  }
}

// -- a job as the far side wants to see it -------------------------------------------------------------------------------

async function described(job, withState = true) {
  const json = job.toJSON();
  return { ...json, processedBy: job.processedBy, state: withState ? await job.getState() : undefined };
}

function tree({ children, ...node }) {
  return { ...node, ...(children ? { children: children.map(tree) } : {}) };
}

function ids(node) {
  return { id: node.job.id, ...(node.children ? { children: node.children.map(ids) } : {}) };
}

// -- the dashboard: its handlers, called as a web server would call them ---------------------------------------------------

async function board({ prefix, queue, method = "get", route, params = {}, query = {}, body = {} }) {
  const { createBullBoard } = require("@bull-board/api");
  const { BullMQAdapter } = require("@bull-board/api/bullMQAdapter");
  const seen = {};
  const adapter = {};
  for (const name of [
    "setQueues", "setViewsPath", "setStaticPath", "setEntryRoute", "setErrorHandler", "setApiRoutes", "setUIConfig",
  ]) {
    adapter[name] = (value) => ((seen[name] = value), adapter);
  }
  // Its dashboards page is a file that only a web server needs, so any folder will do.
  createBullBoard({
    queues: [new BullMQAdapter(await queueOf({ prefix, queue }))],
    serverAdapter: adapter,
    options: { uiBasePath: import.meta.dirname },
  });
  if (route === undefined) return seen.setApiRoutes.map((entry) => [entry.method, entry.route]);
  const found = seen.setApiRoutes.find(
    (entry) => [entry.method].flat().includes(method) && [entry.route].flat().includes(route),
  );
  if (!found) throw new Error(`the dashboard has no ${method} ${route}`);
  const answer = await found.handler({ queues: seen.setQueues, uiConfig: {}, headers: {}, params, query, body });
  return { status: answer.status ?? 200, body: answer.body };
}

// -- commands ----------------------------------------------------------------------------------------------------------

const commands = {
  async add(given) {
    const job = await (await queueOf(given)).add(given.name, given.data, given.opts);
    return { id: job.id };
  },
  async addBulk(given) {
    const jobs = await (await queueOf(given)).addBulk(given.jobs);
    return jobs.map((job) => job.id);
  },
  flow: async (given) => ids(await (await flowsOf(given)).add(tree(given.tree))),
  async schedule(given) {
    const job = await (await queueOf(given)).upsertJobScheduler(given.id, given.repeat, given.template);
    return { id: job.id };
  },
  schedulers: async (given) => (await queueOf(given)).getJobSchedulers(),
  unschedule: async (given) => (await queueOf(given)).removeJobScheduler(given.id),

  pause: async (given) => void (await (await queueOf(given)).pause()),
  resume: async (given) => void (await (await queueOf(given)).resume()),
  isPaused: async (given) => (await queueOf(given)).isPaused(),
  counts: async (given) => (await queueOf(given)).getJobCounts(),
  workers: async (given) => (await queueOf(given)).getWorkers(),
  async jobs(given) {
    const found = await (await queueOf(given)).getJobs(given.states, 0, -1, given.asc ?? false);
    return Promise.all(found.map((job) => described(job)));
  },
  completed: async (given) => Promise.all((await (await queueOf(given)).getCompleted()).map((job) => described(job, false))),
  failed: async (given) => Promise.all((await (await queueOf(given)).getFailed()).map((job) => described(job, false))),
  async job(given) {
    const job = await (await queueOf(given)).getJob(given.id);
    return job ? described(job) : null;
  },
  // Any other method of the queue.
  call: async (given) => (await queueOf(given))[given.method](...given.args),

  // Any other method of a job.
  callJob: async (given) => void (await (await jobOf(given))[given.method](...given.args)),

  retry: async (given) => void (await (await jobOf(given)).retry(given.state)),
  remove: async (given) => void (await (await jobOf(given)).remove()),
  dependencies: async (given) => (await jobOf(given)).getDependencies(),

  listen: async (given) => void (await eventsOf(given)),
  async publish({ prefix, queue, event }) {
    const producer = await get("producer of events", prefix, queue, () => new QueueEventsProducer(queue, { connection, prefix }));
    await producer.publishEvent(event);
  },
  async wait(given) {
    const events = await eventsOf(given);
    return (await jobOf(given)).waitUntilFinished(events, given.seconds * 1000);
  },

  async work(given) {
    const { prefix, queue, worker, options = {} } = given;
    const made = await get("worker", prefix, worker, () => {
      const run = (job, token) => handle(made, worker, job, token);
      const made = new Worker(queue, run, { connection, prefix, telemetry, drainDelay: 1, ...options });
      return made;
    });
    made.on("stalled", (id) => send({ news: "stalled", worker, id }));
    made.on("lockRenewalFailed", (lost) => send({ news: "lock lost", worker, ids: lost }));
  },
  async stop({ prefix, worker, force = false }) {
    const key = `worker ${prefix} ${worker}`;
    await open.get(key).close(force);
    open.delete(key);
  },
  release: async ({ id, value }) => gates.get(id)(value),
  board,

  // What is opened from now on has BullMQ's own telemetry, whose spans stay here.
  trace() {
    if (!spans) {
      const { InMemorySpanExporter, NodeTracerProvider, SimpleSpanProcessor } = require("@opentelemetry/sdk-trace-node");
      spans = new InMemorySpanExporter();
      new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] }).register();
    }
    const { BullMQOtel } = require("bullmq-otel");
    telemetry = new BullMQOtel({ tracerName: "peer", version: "1" });
  },
  spans: () =>
    spans.getFinishedSpans().map((span) => ({
      name: span.name,
      kind: span.kind,
      attributes: span.attributes,
      status: span.status.code,
      trace: span.spanContext().traceId,
      id: span.spanContext().spanId,
      parent: span.parentSpanContext?.spanId,
    })),

  async reset() {
    telemetry = undefined;
    spans?.reset();
    const all = [...open.values()];
    open.clear();
    gates.clear();
    await Promise.all(all.map((object) => object.close(true)));
  },
};

createInterface({ input: process.stdin })
  .on("line", async (line) => {
    const { n, op, ...given } = JSON.parse(line);
    try {
      send({ n, ok: await commands[op](given) });
    } catch (error) {
      send({ n, error: { name: error.name, message: error.message, code: error.code, stack: error.stack } });
    }
  })
  .on("close", () => process.exit(0));
