// The table of requests, open ones first, and the waterfall of the one that is chosen.

import {find, keep, make, set, write} from "./dom.js";
import {seconds} from "./format.js";
import {loadWaterfall} from "./waterfall.js";

export class Requests {
  constructor() {
    this.rows = new Map();
    this.chosen = null;
    this.isWhole = false; // what is shown of the chosen one is all that will be
    this.live = null;
  }

  show(live) {
    this.live = live;
    const order = ([, a], [, b]) => (a.end_ns ? 1 : 0) - (b.end_ns ? 1 : 0) || (a.end_ns ? b.end_ns - a.end_ns : a.begin_ns - b.begin_ns);
    const requests = Object.entries(live.requests).sort(order);
    keep(find("requests").tBodies[0], this.rows, requests.map(([uid]) => uid), uid => this.makeRow(uid));
    find("requests-empty").hidden = requests.length > 0;
    for (const [uid, request] of requests) this.fill(this.rows.get(uid), request, live);
    const hasEnded = Boolean(live.requests[this.chosen]?.end_ns);
    if (hasEnded && !this.isWhole) this.choose(this.chosen);
  }

  makeRow(uid) {
    const button = make("button", {type: "button", class: "link mono"});
    button.addEventListener("click", () => this.choose(uid));
    const cells = ["", "num", "num", "num", "num", ""].map(kind => make("td", kind ? {class: kind} : {}));
    return make("tr", {}, make("td", {}, button), ...cells);
  }

  fill(row, request, live) {
    const [id, stage, age, prompt, cached, output, waits] = row.cells;
    const end = request.end_ns || live.now;
    write(id.firstChild, request.request_id + (request.choice ? ` [${request.choice}]` : ""));
    write(stage, request.stage ? `${request.stage} ${seconds((live.now - request.stage_begin_ns) / 1e9)}` : `ended: ${request.finish_reason}`);
    write(age, (request.end_ns ? "took " : "") + seconds((end - request.begin_ns) / 1e9));
    write(prompt, String(request.prompt_tokens ?? "–"));
    write(cached, String(request.cached_tokens ?? "–"));
    write(output, String(request.output_tokens));
    write(waits, request.waits?.text ?? (request.attempts > 1 ? `attempt ${request.attempts}` : ""));
    set(row, "class", request.end_ns ? "ended" : null);
    set(row, "aria-current", String(request.uid) === this.chosen ? "true" : null);
  }

  async choose(uid) {
    this.chosen = uid;
    this.isWhole = Boolean(this.live.requests[uid]?.end_ns);
    const place = find("waterfall");
    try {
      place.replaceChildren(await loadWaterfall(uid));
    } catch (error) {
      place.replaceChildren(make("p", {class: "dim"}, error.message));
    }
  }
}
