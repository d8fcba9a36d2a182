// joynr's own JavaScript codec behind a pipe: one JSON value in, one JSON value out, line by line.
//
//   {"decode": "<base64 of a frame>"}                     -> {"message": {...}} or {"error": "..."}
//   {"encode": {...message..., "signature": "<base64>"}}  -> {"frame": "<base64>"} or {"error": "..."}
//
// In a message, body and signature are base64 and the ttl is a decimal number in a string.
// The first argument is the directory whose node_modules has the codec.

'use strict';

const readline = require('readline');
const smrf = require(require.resolve('smrf', { paths: [process.argv[2]] }));

function decode(frame) {
    const message = smrf.deserialize(Buffer.from(frame, 'base64'));
    return {
        recipient: message.recipient,
        sender: message.sender,
        ttl: String(message.ttlMs),
        ttlAbsolute: message.isTtlAbsolute,
        isCompressed: message.isCompressed,
        headers: Object.entries(message.headers),
        body: message.body.toString('base64'),
        signature: message.signature ? message.signature.toString('base64') : ''
    };
}

function encode(message) {
    const signature = Buffer.from(message.signature, 'base64');
    const frame = smrf.serialize({
        recipient: message.recipient,
        sender: message.sender,
        ttlMs: Number(message.ttl),
        isTtlAbsolute: message.ttlAbsolute,
        isCompressed: message.isCompressed,
        headers: Object.fromEntries(message.headers),
        body: Buffer.from(message.body, 'base64'),
        signingCallback: signature.length ? () => signature : undefined
    });
    return frame.toString('base64');
}

function answer(line) {
    try {
        const question = JSON.parse(line);
        if (question.decode !== undefined) {
            return { message: decode(question.decode) };
        }
        return { frame: encode(question.encode) };
    } catch (error) {
        return { error: String(error.message) };
    }
}

readline.createInterface({ input: process.stdin, terminal: false }).on('line', line => {
    process.stdout.write(JSON.stringify(answer(line)) + '\n');
});
