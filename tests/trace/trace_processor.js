// Perfetto's own trace processor, as its web page runs it, without a browser:
//   node trace_processor.js FOLDER TRACE SQL...   prints one JSON list of rows per statement.
// FOLDER holds engine_bundle.js and trace_processor.wasm of a build of ui.perfetto.dev.
"use strict";
const fs = require("fs"), path = require("path"), vm = require("vm");
process.on("uncaughtException", (error) => {  // without the source line, which is all of the bundle
  console.error(String(error && error.stack).split("\n").slice(0, 6).join("\n").slice(-2000));
  process.exit(2);
});
const [folder, trace, ...statements] = process.argv.slice(2);

// Protobuf by hand: the few fields of TraceProcessorRpc (trace_processor.proto) that are needed.
function varint(n) {
  const bytes = [];
  for (n = BigInt(n); n > 127n; n >>= 7n) bytes.push(Number(n & 127n) | 128);
  return Buffer.from([...bytes, Number(n)]);
}
const number = (field, n) => Buffer.concat([varint(field << 3), varint(n)]);
const bytes = (field, data) => Buffer.concat([varint((field << 3) | 2), varint(data.length), data]);

function read(buffer) {  // [[field, BigInt or Buffer], ...]
  const found = [];
  let at = 0;
  const next = () => {
    let n = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const b = buffer[at++];
      n |= BigInt(b & 127) << shift;
      if (b < 128) return n;
    }
  };
  while (at < buffer.length) {
    const key = Number(next()), kind = key & 7;
    if (kind === 0) found.push([key >> 3, next()]);
    else {
      const size = kind === 2 ? Number(next()) : kind === 1 ? 8 : 4;
      found.push([key >> 3, buffer.subarray(at, (at += size))]);
    }
  }
  return found;
}
const packed = (buffer) => {
  const list = [];
  for (let at = 0, n = 0n, shift = 0n; at < buffer.length; at++) {
    n |= BigInt(buffer[at] & 127) << shift;
    shift += 7n;
    if (buffer[at] < 128) { list.push(n); n = 0n; shift = 0n; }
  }
  return list;
};

let sequence = 0, replies = [];
const port = { postMessage: (data) => replies.push(Buffer.from(data)) };
function ask(request, ...fields) {
  replies = [];
  const body = Buffer.concat([number(1, sequence++), number(2, request), ...fields]);
  port.onmessage({ data: new context.Uint8Array(bytes(1, body)) });
  return read(Buffer.concat(replies)).map(([, message]) => read(message));
}

function query(sql) {
  const names = [], cells = [];
  for (const reply of ask(3, bytes(103, bytes(1, Buffer.from(sql)))))
    for (const [field, value] of reply) {
      if (field === 5) throw new Error(String(value));
      if (field !== 203) continue;
      for (const [part, data] of read(value)) {
        if (part === 1) names.push(String(data));
        else if (part === 2) throw new Error(String(data));
        else if (part === 3) batch(read(data), cells);
      }
    }
  const rows = [];
  for (let i = 0; i < cells.length; i += names.length) rows.push(cells.slice(i, i + names.length));
  return rows;
}

function batch(fields, cells) {
  const kinds = [], integers = [], reals = [], texts = [];
  for (const [field, value] of fields) {
    if (field === 1) kinds.push(...packed(value).map(Number));
    else if (field === 2) integers.push(...packed(value));
    else if (field === 3) for (let i = 0; i < value.length; i += 8) reals.push(value.readDoubleLE(i));
    else if (field === 5) texts.push(...String(value).split("\0"));
  }
  for (const kind of kinds)
    cells.push(kind === 2 ? Number(BigInt.asIntN(64, integers.shift())) : kind === 3 ? reals.shift() : kind === 4 ? texts.shift() : null);
}

const context = vm.createContext({
  console: { log() {}, warn() {}, error() {}, info() {}, debug() {} },
  URL, TextDecoder, TextEncoder, performance, crypto: globalThis.crypto, setTimeout, clearTimeout,
  WorkerGlobalScope: function () {}, location: { href: "http://here/engine_bundle.js" }, navigator: {},
  XMLHttpRequest: class {
    open(_, name) { this.name = name; }
    send() { this.response = new Uint8Array(fs.readFileSync(path.join(folder, path.basename(this.name)))).buffer; }
  },
});
context.self = context;
context.Uint8Array = vm.runInContext("Uint8Array", context);
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), context);
context.onmessage({ data: port });

function main() {
  const content = fs.readFileSync(trace);
  for (let at = 0; at < content.length; at += 8 << 20) ask(1, bytes(101, content.subarray(at, at + (8 << 20))));
  ask(2);
  console.log(JSON.stringify(statements.map(query)));
  process.exit(0);
}
setTimeout(main, 0);  // the engine is ready after the promises that stand before this
