// The stream of what changes, and the server as it is when all changes are put together.

import {call, events} from "./api.js";

const MAX_STEPS = 160;
const RETRY_MS = 1500;
const SILENT_MS = 8000; // beats change the state once a second, so a silent stream has lost its server

/** The latest state of the server. Stamps are nanoseconds of its clock. */
export class Live {
  constructor(onChange, onState) {
    this.onChange = onChange;
    this.onState = onState;
    this.isOn = this.isLoaded = false;
    this.clear();
  }

  clear() {
    Object.assign(this, {processes: {}, edges: {}, requests: {}, steps: new Map(), stages: [], numOpen: 0, missing: 0, now: 0, isLost: false});
  }

  /** Seconds from a stamp to the latest event. */
  age(ns) {
    return Math.max(0, (this.now - ns) / 1e9);
  }

  /** Reads the stream while the page is visible and the model loaded: a hidden one costs the server nothing. */
  start() {
    document.addEventListener("visibilitychange", () => this.restart());
    setInterval(() => {
      if (this.isOn && !document.hidden && performance.now() - this.heardMs > SILENT_MS) {
        this.lose("lost", "no message from the server for some seconds");
        this.restart();
      }
    }, RETRY_MS);
    this.restart();
  }

  /** Keeps the latest data, but the state of each process becomes unknown. */
  lose(state, message) {
    if (this.isOn) {
      this.isLost = true;
      this.edges = {};
      for (const process of Object.values(this.processes)) Object.assign(process, {state: "unknown", busy_since_ns: 0, phase: ""});
      this.onChange(this);
    }
    this.isOn = false;
    this.onState(state, message);
  }

  /** Begins anew, for example with another key. */
  restart() {
    this.abort?.abort();
    clearTimeout(this.retry);
    if (!document.hidden && this.isLoaded) this.read(this.abort = new AbortController());
  }

  async read(abort) {
    try {
      const reply = await call("live", {signal: abort.signal});
      this.clear();
      for await (const event of events(reply)) {
        this.merge(event);
        this.heardMs = performance.now();
        this.isOn = true;
        this.onState("on", "");
        this.onChange(this);
      }
      this.lose("lost", "the server drains or this frontend is replaced");
    } catch (error) {
      if (abort.signal.aborted) return;
      this.lose(error.status === 401 ? "key" : "lost", error.message);
      if (error.status === 401) return; // until there is another key
    }
    if (!abort.signal.aborted) this.retry = setTimeout(() => this.restart(), RETRY_MS);
  }

  merge(event) {
    this.now = event.now_ns;
    this.numOpen = event.num_open;
    this.missing = event.frontends_missing ?? 0;
    this.stages = event.stages ?? [];
    for (const part of ["processes", "edges", "requests"]) {
      for (const [key, value] of Object.entries(event[part] ?? {})) {
        if (value === null) delete this[part][key];
        else this[part][key] = value;
      }
    }
    for (const [key, [begin, end, prefill, decode, engine]] of Object.entries(event.steps ?? {})) {
      this.steps.set(key, {begin, end, prefill, decode, engine});
    }
    while (this.steps.size > MAX_STEPS) this.steps.delete(this.steps.keys().next().value);
  }

  /** The processes that have a place of their own: not those that wait for one (`tokenizer.next`) or have left theirs. */
  placed() {
    return Object.entries(this.processes).filter(([name]) => !name.includes("."));
  }

  /** The processes of a kind that have a place of their own. */
  workers(kind) {
    return this.placed().filter(([name]) => kindOf(name) === kind).map(([, process]) => process);
  }

  /** The gauges of all processes of a kind, summed. */
  gauges(kind) {
    const sums = {};
    for (const {gauges} of this.workers(kind)) {
      for (const [key, value] of Object.entries(gauges)) sums[key] = (sums[key] ?? 0) + value;
    }
    return sums;
  }
}

/** `tokenizer-2` → `tokenizer`. */
export const kindOf = name => name.split("-")[0];
