// The table of processes, and what the operator can do to them.

import {call, getJson, getKey} from "./api.js";
import {find, keep, make, set, write} from "./dom.js";
import {bytes, seconds} from "./format.js";

const LONG_STEP_S = 2.5; // a beat comes each second, and short steps may have ended since the last one

export class Processes {
  constructor() {
    this.rows = new Map();
    this.isOperator = false;
    this.note = find("action-note");
    find("profile").addEventListener("click", () => this.profile());
    find("snapshot").addEventListener("click", () => this.act("Taking a snapshot", "admin/snapshot"));
  }

  /** Finds out what the key allows. */
  async setKey() {
    this.isOperator = false;
    let text = getKey() ? "" : "restart, profile and cache need an admin key";
    try {
      if (getKey()) {
        await call("admin/processes");
        this.isOperator = true;
      }
    } catch (error) {
      text = error.message;
    }
    write(find("key-note"), text);
    find("actions").hidden = !this.isOperator;
  }

  show(live) {
    write(find("stages"), live.stages.join("\n"));
    keep(find("processes").tBodies[0], this.rows, Object.keys(live.processes), name => this.makeRow(name));
    for (const [name, row] of this.rows) {
      const process = live.processes[name];
      const [, state, cpu, memory, beat, restarts, act] = row.cells;
      set(state.firstChild, "data-state", process.state);
      const busyS = process.busy_since_ns ? live.age(process.busy_since_ns) : 0;
      const busy = busyS > LONG_STEP_S ? ` ${seconds(busyS)}` : "";
      const phase = process.phase && `: ${process.phase}`;
      write(state.firstChild, `${process.state}${busy}${phase}`);
      set(state, "title", process.degraded || null);
      write(cpu, process.cpu_percent === null ? "–" : `${process.cpu_percent.toFixed(0)} %`);
      write(memory, process.rss_bytes === null ? "–" : bytes(process.rss_bytes));
      write(beat, process.beat_ns ? seconds(live.age(process.beat_ns)) : "–");
      write(restarts, String(process.num_restarts));
      act.firstChild.hidden = !this.isOperator || name.includes("."); // a standby or a successor exists only briefly
    }
  }

  makeRow(name) {
    const restart = make("button", {type: "button", class: "link", "aria-label": `Restart ${name}`}, "restart");
    restart.addEventListener("click", () => {
      const question = `Restart the ${name}? Its successor starts before it stops, and running requests continue.`;
      if (confirm(question)) this.act(`Restarting the ${name}`, `admin/restart/${name}`);
    });
    const cells = ["num", "num", "num", "num"].map(kind => make("td", {class: kind}));
    return make("tr", {}, make("th", {scope: "row"}, name), make("td", {}, make("span", {class: "state"})), ...cells, make("td", {}, restart));
  }

  async profile() {
    const button = find("profile"), runs = button.getAttribute("aria-pressed") === "true";
    button.disabled = true;
    if (await this.act(runs ? "Merging the profile" : "Starting the profile", runs ? "stop_profile" : "start_profile")) {
      set(button, "aria-pressed", String(!runs));
      write(button, runs ? "Record a profile" : "Stop the profile");
    }
    button.disabled = false;
  }

  /** Sends a command and shows its result; true if it was carried out. */
  async act(text, path) {
    write(this.note, `${text} …`);
    try {
      const reply = await getJson(path, {method: "POST"});
      write(this.note, describe(reply));
      return true;
    } catch (error) {
      write(this.note, error.message);
      return false;
    }
  }
}

/** What a command answers with: words, a file on the server's machine, or the processes that take part. */
function describe({done, begun, file, directory, processes, ...rest}) {
  if (done ?? begun) return done ?? begun;
  if (file ?? directory) return `Written on the server's machine: ${file ?? directory}`;
  return processes ? `Runs in ${processes.join(", ")}` : JSON.stringify(rest);
}
