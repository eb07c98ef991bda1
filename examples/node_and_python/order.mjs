// A Node producer: adds an order, waits until Python has priced it, then for the letter.
import { Job, Queue, QueueEvents } from 'bullmq'

const connection = { host: '127.0.0.1', port: Number(process.env.REDIS_PORT ?? 6379) }
const orders = new Queue('orders', { connection })
const letters = new Queue('letters', { connection })
// From the first event on: what ends before a listener is there would otherwise be missed.
const priced = new QueueEvents('orders', { connection, lastEventId: '0' })
const written = new QueueEvents('letters', { connection, lastEventId: '0' })
await Promise.all([priced.waitUntilReady(), written.waitUntilReady()])

const order = await orders.add('price', { order: '17', customer: 'Ada', article: 'tea', pieces: 3 }, { attempts: 3 })
const { letter } = await order.waitUntilFinished(priced, 20_000)
const job = await Job.fromId(letters, letter)
console.log(await job.waitUntilFinished(written, 20_000))

await Promise.all([priced, written, orders, letters].map((part) => part.close()))
