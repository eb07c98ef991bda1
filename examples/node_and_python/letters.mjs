// A Node worker: writes letters for whoever asks, in whatever language.
import { Worker } from 'bullmq'

const connection = { host: '127.0.0.1', port: Number(process.env.REDIS_PORT ?? 6379), maxRetriesPerRequest: null }

const worker = new Worker('letters', async (job) => `Dear ${job.data.customer}, ${job.data.text}`, { connection })
process.on('SIGTERM', () => worker.close().then(() => process.exit(0)))
