// One side of a Node peer: node driver.mjs PEER worker|produce '{…}'. The twin of driver.py: what it measures is said there.
import { renameSync, writeFileSync } from 'node:fs';

const [, , name, role, text] = process.argv;
const cfg = JSON.parse(text);
const now = () => Number(process.hrtime.bigint());
const cpu = () => {
  const used = process.cpuUsage();
  return (used.user + used.system) / 1e6;
};
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const payload = (number) => ({ n: number, user: 'u123' });
const write = (result) => {
  writeFileSync(`${cfg.out}.tmp`, JSON.stringify(result));
  renameSync(`${cfg.out}.tmp`, cfg.out);
};

class Probe {
  constructor() {
    this.seen = new Uint8Array((cfg.ids ?? cfg.n) + 1);
    this.starts = cfg.record ? {} : null;
    this.started = 0;
    this.finished = 0;
    this.ended = false;
  }

  async job(data) {
    if (++this.started === 1) this.begin();
    this.seen[data.n]++;
    if (this.starts) this.starts[data.n] = now();
    if (++this.finished === cfg.n) this.end();
  }

  begin() {
    this.t0 = now();
    this.cpu0 = cpu();
    if (cfg.cap_s) setTimeout(() => this.end(), cfg.cap_s * 1000);
  }

  end() {
    if (this.ended) return;
    this.ended = true;
    const measured = { jobs: this.finished, elapsed: (now() - this.t0) / 1e9, cpu_s: cpu() - this.cpu0 };
    setTimeout(() => {
      let distinct = 0;
      for (const times of this.seen) if (times) distinct++;
      write({ ...measured, started: this.started, distinct, partial: measured.jobs < cfg.n, starts: this.starts });
    }, (cfg.settle_s ?? 0.6) * 1000);
  }
}

async function produce(peer) {
  const producer = new peer.Producer();
  await producer.open(cfg.url, cfg);
  const first = cfg.first ?? 0;
  const end = first + cfg.n;
  const result = { jobs: cfg.n };
  if (cfg.mode === 'paced') {
    await producer.add(payload(0));
    await sleep(1000);
  }
  const cpu0 = cpu();
  const t0 = now();
  if (cfg.mode === 'single') {
    for (let number = first; number < end; number++) await producer.add(payload(number));
  } else if (cfg.mode === 'bulk') {
    for (let start = first; start < end; start += peer.meta.BULK) {
      const count = Math.min(peer.meta.BULK, end - start);
      await producer.addBulk(Array.from({ length: count }, (_, at) => payload(start + at)));
    }
  } else {
    result.sent = {};
    for (let number = first; number < end; number++) {
      await sleep(Math.max(0, (t0 + (number - first) * cfg.gap_s * 1e9 - now()) / 1e6));
      result.sent[number] = now();
      await producer.add(payload(number));
    }
  }
  Object.assign(result, { elapsed: (now() - t0) / 1e9, cpu_s: cpu() - cpu0 });
  await producer.close();
  write(result);
  process.exit(0);
}

const peer = await import(`./peers/${name}.mjs`);
if (role === 'worker') {
  await peer.runWorker(cfg.url, cfg, new Probe());
} else {
  await produce(peer);
}
