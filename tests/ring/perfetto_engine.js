// Runs Perfetto's trace processor between stdin and stdout: the WebAssembly build of the Perfetto UI, whose directory is
// the one argument, in a stand-in for the web worker that it expects. Both ways carry TraceProcessorRpcStream messages.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const directory = process.argv[2];
const log = () => {}; // a crash is an exception all the same
const worker = vm.createContext({
  console: { log, warn: log, error: log }, crypto, performance, setTimeout, TextDecoder, TextEncoder,
});
const bytesOf = vm.runInContext("(bytes) => Uint8Array.from(bytes)", worker);

worker.self = worker;
worker.location = { href: "file:///" };
worker.WorkerGlobalScope = class {};
worker.XMLHttpRequest = class {
  open(method, name) {
    this.file = path.join(directory, path.basename(name));
  }
  send() {
    this.response = bytesOf(fs.readFileSync(this.file)).buffer;
  }
};
vm.runInContext(fs.readFileSync(path.join(directory, "engine_bundle.js"), "utf8"), worker);

const port = { postMessage: (bytes) => fs.writeSync(1, bytes) };
worker.onmessage({ data: port });
setImmediate(() => process.stdin.on("data", (bytes) => port.onmessage({ data: bytesOf(bytes) })));
