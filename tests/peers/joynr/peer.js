// A joynr node in JavaScript, as far as the wire goes: joynr's own codec (smrf) over an MQTT client.
//
//   node peer.js <directory with node_modules> <url of the broker> <own topic>
//
// It prints a line of JSON for each thing that happens, and does what the lines on its stdin say:
//
//   {"subscribe": "<topic filter>"}
//   {"publish": {"topic": "...", "recipient": "...", "sender": "...", "headers": {...}, "body": "..."}}
//
// To a request (header t = rq) it answers as a provider does: a reply with the same custom headers,
// on the topic that the request's reply-to address names, with the request's body in `response`.

'use strict';

const readline = require('readline');
const [, , home, url, ownTopic] = process.argv;
const load = name => require(require.resolve(name, { paths: [home] }));
const smrf = load('smrf');
const mqtt = load('mqtt');

const client = mqtt.connect(url, { protocolVersion: 5, reconnectPeriod: 0 });
const tell = event => process.stdout.write(JSON.stringify(event) + '\n');
let answers = 0;

function frame(message) {
    return smrf.serialize({
        recipient: message.recipient,
        sender: message.sender,
        ttlMs: Date.now() + 60000,
        isTtlAbsolute: true,
        isCompressed: false,
        headers: message.headers,
        body: Buffer.from(message.body, 'utf8')
    });
}

function answer(message) {
    const address = JSON.parse(message.headers.re);
    const request = JSON.parse(message.body.toString('utf8'));
    const headers = { t: 'rp', id: `reply-${++answers}` };
    for (const [key, value] of Object.entries(message.headers)) {
        if (key.startsWith('c-')) {
            headers[key] = value;
        }
    }
    const reply = {
        _typeName: 'joynr.Reply',
        requestReplyId: request.requestReplyId,
        response: [request.methodName]
    };
    client.publish(
        `${address.topic}/low`,
        frame({ recipient: message.sender, sender: message.recipient, headers, body: JSON.stringify(reply) }),
        { qos: 1 }
    );
}

client.on('connect', () => {
    client.subscribe(`${ownTopic}/#`, { qos: 1 }, () => tell({ ready: ownTopic }));
});
client.on('error', error => tell({ error: String(error.message) }));
client.on('message', (topic, payload, packet) => {
    let message;
    try {
        message = smrf.deserialize(payload);
    } catch (error) {
        tell({ malformed: String(error.message) });
        return;
    }
    tell({
        received: {
            topic,
            qos: packet.qos,
            expiry: packet.properties && packet.properties.messageExpiryInterval,
            recipient: message.recipient,
            sender: message.sender,
            headers: message.headers,
            body: message.body.toString('utf8')
        }
    });
    if (message.headers.t === 'rq') {
        answer(message);
    }
});

readline.createInterface({ input: process.stdin, terminal: false }).on('line', line => {
    const order = JSON.parse(line);
    if (order.subscribe !== undefined) {
        client.subscribe(order.subscribe, { qos: 1 }, () => tell({ subscribed: order.subscribe }));
    } else {
        client.publish(order.publish.topic, frame(order.publish), { qos: 1 }, () => tell({ published: true }));
    }
});
