// Puts the parts of the page together.

import {getJson, getKey, setKey, setModel} from "./api.js";
import {connectTree, showPages} from "./cache.js";
import {find, keep, make, set, write} from "./dom.js";
import {Live} from "./live.js";
import {describe, Models, stateOf} from "./models.js";
import {Playground} from "./playground.js";
import {Processes} from "./processes.js";
import {Requests} from "./requests.js";
import {Ring} from "./ring.js";
import {showSteps} from "./steps.js";

const ring = new Ring(), processes = new Processes(), requests = new Requests();
const playground = new Playground(), options = new Map();
connectTree();

const STATES = {lost: ["lost", "no connection"], key: ["starting", "a key is needed"]};
let isNamed = false, lastMs = 0;

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
  showPlacement(live.workers("scheduler").map(({placement}) => placement).filter(({device}) => device));
  const scheduler = live.gauges("scheduler");
  write(find("totals"), `${live.numOpen} open · ${scheduler.running ?? 0} running · ${scheduler.waiting ?? 0} waiting` +
    (live.missing ? ` · ${live.missing} frontends do not answer` : ""));
}

function setStatus(state, text) {
  set(find("status"), "data-state", state);
  write(find("status"), text);
}

/** Outdated values are grey. Without access, the page asks for a key in place of the board. */
const live = new Live(show, (state, message) => {
  const isLocked = state === "key";
  set(find("main"), "data-stale", state !== "on");
  find("gate").hidden = !isLocked;
  find("main").hidden = find("key-form").hidden = isLocked;
  if (state === "on") {
    lastMs = Date.now();
    return;
  }
  setStatus(...STATES[state]);
  if (state === "lost") models.look(); // it may have been unloaded
  const seen = lastMs ? `; showing the state of ${new Date(lastMs).toLocaleTimeString()}` : "";
  write(find("totals"), isLocked ? "" : message + seen);
  if (isLocked) {
    write(find("gate-note"), getKey() ? "The server does not know this key." : "");
    find("gate-key").focus();
  }
});

/** Shows the devices and formats of the engines: what `auto` resolved to. */
function showPlacement(engines) {
  const of = name => [...new Set(engines.map(placement => placement[name]))].join(", ");
  const cache = of("kv_cache_dtype") === of("dtype") ? "" : `, KV cache in ${of("kv_cache_dtype")}`;
  write(find("placement"), engines.length ? `${of("device")}, ${of("dtype")}${cache}` : "");
}

async function nameModel() {
  isNamed = true;
  const {served_names: names, has_chat_template: isChat} = (await getJson("server_info")).model;
  write(find("model"), models.hasStates ? "" : names.join(", "));
  if (isChat) playground.openChat();
}

for (const [form, input] of [["key-form", "key"], ["gate-form", "gate-key"]]) {
  find(form).addEventListener("submit", event => {
    event.preventDefault();
    setKey(find(input).value.trim());
    find(input).value = "";
    set(find("key"), "placeholder", getKey() ? "a key is in use" : "API or admin key");
    live.isLoaded = false;
    models.look();
  });
}

/** Shows the chosen one of several models, and reads its stream while it is loaded. */
const models = new Models(() => {
  const model = models.choose(new URLSearchParams(location.search).get("model")), wasLoaded = live.isLoaded;
  live.isLoaded = !models.hasStates || model.status.value === "loaded";
  if (models.hasStates) showModel(model);
  if (live.isLoaded === wasLoaded) return;
  if (live.isLoaded) processes.setKey();
  live.restart();
}, () => false);

function showModel({id, status}) {
  const isLoading = status.value === "loading";
  setModel(id);
  find("models").hidden = false;
  keep(find("models"), options, models.all.map(other => other.id), other => make("option", {value: other, selected: other === id && ""}));
  for (const other of models.all) write(options.get(other.id), `${other.id} (${other.status.value})`);
  find("unloaded").hidden = live.isLoaded;
  if (live.isLoaded) return;
  for (const other of ["main", "gate"]) find(other).hidden = true;
  find("load").hidden = isLoading;
  write(find("unloaded-title"), `${id} is ${isLoading ? "being loaded" : "not loaded"}`);
  write(find("unloaded-text"), isLoading ? describe({status}) : models.refusal || status.error || "");
  write(find("totals"), "");
  setStatus(stateOf({status}), describe({status}));
}

find("models").addEventListener("change", () => { location.search = `?model=${encodeURIComponent(find("models").value)}`; });
find("load").addEventListener("click", () => models.change("load", find("models").value));
models.look();
live.start();
