// MQTT.js as a program: `node mqttjs_process.js PORT CLIENT FILTER...`; see `talking_client.py`. MODULE names the folder of MQTT.js.
const mqtt = require(process.env.MODULE)
const readline = require('node:readline')

const [port, name, ...filters] = process.argv.slice(2)
const client = mqtt.connect(`mqtt://127.0.0.1:${port}`, { clientId: name, clean: false, reconnectPeriod: 500 })

client.on('message', (topic, payload) => console.log(`${topic} ${payload}`))
client.once('connect', () => client.subscribe(filters, { qos: 1 }, () => console.log('ready')))
client.on('error', (error) => console.error(error))
readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const [topic, body] = line.split(' ')
  client.publish(topic, body, { qos: 1 })
})
