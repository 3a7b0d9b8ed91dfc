// A shop asks a bank with MQTT.js, and nothing of ours: the bank answers as MQTT 5 describes it (4.10). Then the shop asks what became of it.
import mqtt from "mqtt";

const INBOX = "$queue/interchange/inbox/";
const [shop, bank] = await Promise.all(["shop", "bank"].map((clientId) => mqtt.connectAsync(process.argv[2], { protocolVersion: 5, clientId })));
const next = (topic) =>
  new Promise((resolve) => {
    const take = (on, payload, packet) => {
      if (on !== topic) return;
      shop.removeListener("message", take);
      resolve([payload.toString(), packet.properties]);
    };
    shop.on("message", take);
  });

bank.on("message", (_topic, _payload, { properties }) =>
  bank.publish(properties.responseTopic, "granted", {
    qos: 1,
    properties: { correlationData: properties.correlationData, userProperties: { sender: "bank/credit" } },
  }),
);
await bank.subscribeAsync(INBOX + "bank/credit", { qos: 1 });
await shop.subscribeAsync([INBOX + "shop/orders", "interchange/answer"], { qos: 1 });
const [answered, responded] = [next("interchange/answer"), next(INBOX + "shop/orders")];
const userProperties = { kind: "request", sender: "shop/orders", recipient: "bank/credit" };
await shop.publishAsync("interchange/post", "order 17", { qos: 1, properties: { userProperties } });
const told = JSON.parse((await answered)[0]);
const [body, properties] = await responded;
const header = properties.userProperties;
let calls = [];
while (calls[0]?.status !== "answered") {
  const found = next("interchange/answer");
  await shop.publishAsync("interchange/query", JSON.stringify({ call: told.call }), { qos: 1 });
  calls = JSON.parse((await found)[0]).calls;
}
console.log(header.kind, body, header.call === told.call, header.traceparent.startsWith(`00-${told.session}-`), calls[0].status);
await Promise.all([shop.endAsync(), bank.endAsync()]);
