// Puts the parts of the page together.

import {getJson, getKey, setKey} from "./api.js";
import {connectTree, showPages} from "./cache.js";
import {find, set, write} from "./dom.js";
import {Live} from "./live.js";
import {Playground} from "./playground.js";
import {Processes} from "./processes.js";
import {Requests} from "./requests.js";
import {Ring} from "./ring.js";
import {showSteps} from "./steps.js";

const ring = new Ring(), processes = new Processes(), requests = new Requests();
new Playground();
connectTree();

const STATES = {lost: ["lost", "no connection"], key: ["starting", "a key is needed"]};
let isNamed = false;

function show(live) {
  ring.show(live);
  processes.show(live);
  showSteps(live);
  showPages(live);
  requests.show(live);
  const bad = live.placed().filter(([, {state}]) => !["ready", "busy", "standby"].includes(state));
  const isStarting = bad.some(([, {state}]) => state === "starting");
  if (!bad.length && !isNamed) nameModel();
  setStatus(bad.length ? (isStarting ? "starting" : "lost") : "ready", bad.map(([name, {state}]) => `${name} ${state}`).join(", ") || "ready");
  const scheduler = live.gauges("scheduler");
  write(find("totals"), `${live.numOpen} open · ${scheduler.running ?? 0} running · ${scheduler.waiting ?? 0} waiting` +
    (live.missing ? ` · ${live.missing} frontends do not answer` : ""));
}

function setStatus(state, text) {
  set(find("status"), "data-state", state);
  write(find("status"), text);
}

const live = new Live(show, (state, message) => {
  if (state !== "on") {
    setStatus(...STATES[state]);
    write(find("totals"), message);
  }
});

async function nameModel() {
  isNamed = true;
  write(find("model"), (await getJson("v1/models")).data.map(model => model.id).join(", "));
}

find("key-form").addEventListener("submit", event => {
  event.preventDefault();
  setKey(find("key").value.trim());
  find("key").value = "";
  set(find("key"), "placeholder", getKey() ? "a key is in use" : "API or admin key");
  processes.setKey();
  live.restart();
});

processes.setKey();
live.start();
