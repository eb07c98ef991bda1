// Does with Node's BullMQ what its standard input asks for, one JSON operation a line, and answers one JSON line each.
// Its clock stands where `clock` put it, so that scores and times are the same as those of the scripts under test.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [modules, name] = process.argv.slice(2);
const require = createRequire(modules + "/package.json");
const RealDate = Date;
let now = null;
globalThis.Date = class extends RealDate {
  constructor(...given) {
    super(...(given.length > 0 || now === null ? given : [now]));
  }
  static now() {
    return now ?? RealDate.now();
  }
};

const { FlowProducer, Job, Queue, QueueEvents, Worker } = require(name);

let open = {};
const objects = [];

function keep(object) {
  objects.push(object);
  object.on("error", () => {});
  return object;
}

const operations = {
  async open({ path, prefix, queue, worker = {} }) {
    const connection = { path, maxRetriesPerRequest: null };
    open = { connection, prefix, workers: {} };
    open.queue = keep(new Queue(queue, { connection, prefix }));
    await open.queue.waitUntilReady();
    open.worker = keep(new Worker(queue, null, { connection, prefix, autorun: false, ...worker }));
    await open.worker.waitUntilReady();
  },
  clock: async ({ at }) => { now = at; },
  add: async ({ name, data, opts }) => (await open.queue.add(name, data, opts)).id,
  async flow({ tree }) {
    const flows = keep(new FlowProducer({ connection: open.connection, prefix: open.prefix }));
    return (await flows.add(tree)).job.id;
  },
  async upsert({ id, repeat, template }) {
    const job = await open.queue.upsertJobScheduler(id, repeat, template);
    return job ? job.id : null;
  },
  unschedule: async ({ id }) => open.queue.removeJobScheduler(id),
  async fetch({ token }) {
    const job = await open.worker.getNextJob(token, { block: false });
    return job ? { id: job.id, data: job.data } : null;
  },
  async complete({ id, value, token, fetchNext = false }) {
    const job = await Job.fromId(open.worker, id);
    return (await job.moveToCompleted(value, token, fetchNext)) ?? null;
  },
  async fail({ id, reason, token, fetchNext = false }) {
    const job = await Job.fromId(open.worker, id);
    const error = new Error(reason);
    error.stack = "Error: " + reason;
    return (await job.moveToFailed(error, token, fetchNext)) ?? null;
  },
  delay: async ({ id, until, token }) => (await Job.fromId(open.worker, id)).moveToDelayed(until, token),
  wait: async ({ id, token }) => (await Job.fromId(open.worker, id)).moveToWait(token),
  retry: async ({ id, state }) => (await Job.fromId(open.queue, id)).retry(state),
  pause: async () => open.queue.pause(),
  resume: async () => open.queue.resume(),
  remove: async ({ id, children = true }) => open.queue.remove(id, { removeChildren: children }),
  state: async ({ id }) => open.queue.getJobState(id),
  counts: async () => open.queue.getJobCounts(),
  // Any other method of a job, or of the queue.
  async callJob({ id, method, args }) {
    const job = await Job.fromId(open.queue, id);
    return (await job[method](...args)) ?? null;
  },
  call: async ({ method, args }) => open.queue[method](...args),
  concurrency: async ({ value }) => open.queue.setGlobalConcurrency(value),
  rate: async ({ max, duration }) => open.queue.setGlobalRateLimit(max, duration),
  // Two steps, since operations come one by one: begin to wait for the end of a job, then ask how it ended.
  async listen({ id }) {
    open.events ??= keep(new QueueEvents(open.queue.name, { connection: open.connection, prefix: open.prefix }));
    await open.events.waitUntilReady();
    const job = await Job.fromId(open.queue, id);
    open.waiting ??= {};
    open.waiting[id] = job.waitUntilFinished(open.events, 10000).then((value) => ({ value }), (error) => ({ error: error.message }));
  },
  ended: async ({ id }) => open.waiting[id],
  async finished({ state }) {
    const jobs = await open.queue.getJobs([state]);
    return jobs.map((job) => ({ id: job.id, value: job.returnvalue, by: job.processedBy, made: job.attemptsMade, reason: job.failedReason }));
  },
  children: async ({ queue, id }) => {
    const parents = keep(new Queue(queue, { connection: open.connection, prefix: open.prefix }));
    return (await Job.fromId(parents, id)).getChildrenValues();
  },
  async close() {
    now = null;
    await Promise.all(objects.splice(0).map((object) => object.close()));
    open = {};
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { op, ...given } = JSON.parse(line);
  let answer;
  try {
    answer = { ok: (await operations[op](given)) ?? null };
  } catch (error) {
    answer = { error: error.message, code: error.code ?? null };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
