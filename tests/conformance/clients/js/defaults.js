// KafkaJS with its defaults, "node defaults.js ADDRESS TOPIC GROUP NAME COUNT": see python_defaults.py.
const { Kafka } = require('kafkajs')

const [address, topic, groupId, name, count] = process.argv.slice(2)
// KafkaJS logs with these; what was heard goes to stdout alone.
console.log = console.info = console.error
const pause = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds))

async function main() {
  const kafka = new Kafka({ brokers: address.split(',') })
  const consumer = kafka.consumer({ groupId })
  const producer = kafka.producer()
  const send = value => producer.send({ topic, messages: [{ value }] })
  const last = `${name} ${count - 1}`
  let hears = false
  let done
  const ended = new Promise(resolve => { done = resolve })
  await Promise.all([consumer.connect(), producer.connect()])
  await consumer.subscribe({ topic })
  await consumer.run({
    eachMessage: async ({ message }) => {
      hears = true
      const value = message.value.toString()
      process.stdout.write(`${value}\n`)
      if (value === last) done()
    },
  })
  while (!hears) {
    await send('probe')
    await pause(300)
  }
  for (let number = 0; number < count; number++) {
    await send(`${name} ${number}`)
  }
  await ended
  await consumer.disconnect()
  await producer.disconnect()
}

main().catch(error => {
  console.error(error)
  process.exit(1)
})
