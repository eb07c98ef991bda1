import { createRequire } from 'node:module';

const require = createRequire(`${process.env.BENCH_HOME}/node/`);
const { Queue, Worker } = require('bullmq');

export const meta = {
  BULK: 1000,
  JOBS: 60000,
  SETTINGS: 'addBulk(1000); keeps completed jobs, lock and stalled check (its defaults)',
  PACKAGES: ['bullmq', 'ioredis'],
};

const connection = (url) => {
  const { hostname, port } = new URL(url);
  return { host: hostname, port: Number(port) };
};

export class Producer {
  async open(url) {
    this.queue = new Queue('bench', { connection: connection(url) });
    await this.queue.waitUntilReady();
  }

  add(data) {
    return this.queue.add('job', data);
  }

  addBulk(all) {
    return this.queue.addBulk(all.map((data) => ({ name: 'job', data })));
  }

  close() {
    return this.queue.close();
  }
}

export async function runWorker(url, cfg, probe) {
  const worker = new Worker('bench', (job) => probe.job(job.data), {
    connection: { ...connection(url), maxRetriesPerRequest: null },
    concurrency: cfg.concurrency,
  });
  worker.on('error', (error) => console.error('worker error', error.message));
}
