// The ring: each kind of process with its state, and each edge with its messages a second.

import {draw, find, set, write} from "./dom.js";
import {bytes, percent, rate} from "./format.js";

const KINDS = ["frontend", "tokenizer", "scheduler", "detokenizer"];
const WORST = ["dead", "hung", "restarting", "starting", "busy", "ready", "standby"];
const WIDE = {width: 660, height: 250, box: [200, 84], gap: [248, 74]};
const NARROW = {width: 350, height: 262, box: [142, 92], gap: [62, 70]};

/** What each kind has in hand, by its gauges. */
const HAS = {
  frontend: gauges => [`${gauges.requests ?? 0} requests`],
  tokenizer: gauges => [`${gauges.chars_in_hand ?? 0} characters`],
  scheduler: gauges => [`${gauges.running ?? 0} running`, `${gauges.waiting ?? 0} waiting`],
  detokenizer: gauges => [`${gauges.streams ?? 0} streams`],
};

export class Ring {
  constructor() {
    this.svg = find("ring");
    const narrow = matchMedia("(max-width: 560px)");
    const build = () => this.build(narrow.matches ? NARROW : WIDE);
    narrow.addEventListener("change", () => {
      build();
      if (this.live) this.show(this.live);
    });
    build();
  }

  build({width, height, box: [w, h], gap: [x, y]}) {
    set(this.svg, "viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(arrow());
    const left = (width - 2 * w - x) / 2, right = left + w + x, top = 4, low = top + h + y;
    const places = {frontend: [left, top], tokenizer: [right, top], scheduler: [right, low], detokenizer: [left, low]};
    const across = left + w, middle = right + w / 2, start = left + w / 2;
    this.edges = {
      "frontend:tokenizer": this.edge(`M${across} ${top + h / 2}H${right}`, across + x / 2, top + h / 2 - 8, "middle"),
      "tokenizer:scheduler": this.edge(`M${middle} ${top + h}V${low}`, middle + 9, top + h + y / 2 + 4, "start"),
      "scheduler:detokenizer": this.edge(`M${right} ${low + h / 2}H${across}`, across + x / 2, low + h / 2 - 8, "middle"),
      "detokenizer:frontend": this.edge(`M${start} ${low}V${top + h}`, start + 9, top + h + y / 2 + 4, "start"),
    };
    this.nodes = Object.fromEntries(KINDS.map(kind => [kind, this.node(kind, ...places[kind], w, h)]));
  }

  edge(path, x, y, anchor) {
    const flow = draw("path", {class: "flow", d: path});
    const text = draw("text", {x, y, "text-anchor": anchor});
    this.svg.append(draw("g", {class: "edge"}, draw("path", {d: path, "marker-end": "url(#arrow)"}), flow, text));
    return {flow, text};
  }

  node(kind, x, y, w, h) {
    const lines = ["name", "what", "more", "more"].map((name, place) =>
      draw("text", {class: name, x: x + 14, y: y + 20 + place * (h - 32) / 3}));
    const group = draw("g", {class: "node", "data-state": "standby"},
      draw("rect", {x, y, width: w, height: h, rx: 5}), draw("rect", {class: "stripe", x, y, width: 5, height: h, rx: 2}), ...lines);
    this.svg.append(group);
    write(lines[0], kind);
    return {group, lines};
  }

  show(live) {
    this.live = live;
    const texts = KINDS.map(kind => this.showKind(live, kind));
    for (const [edge, {flow, text}] of Object.entries(this.edges)) {
      const value = live.edges[edge] ?? 0;
      write(text, value ? `${rate(value)}/s` : live.isLost ? "" : "idle");
      set(flow, "data-speed", value ? (value < 5 ? 1 : value < 50 ? 2 : 3) : null);
    }
    write(find("ring-text"), texts.join("; "));
  }

  showKind(live, kind) {
    const workers = live.workers(kind);
    const {group, lines: [name, what, more, most]} = this.nodes[kind];
    const worst = workers.map(({state}) => state).sort((a, b) => WORST.indexOf(a) - WORST.indexOf(b))[0] ?? "standby";
    const sum = read => workers.reduce((total, process) => total + (read(process) ?? 0), 0);
    set(group, "data-state", worst);
    write(name, workers.length > 1 ? `${kind} ×${workers.length}` : kind);
    const phase = workers.find(process => process.phase);
    write(what, phase ? `${phase.phase}${phase.fraction === null ? "" : ` ${percent(phase.fraction)}`}` : worst);
    write(more, HAS[kind](live.gauges(kind)).join(" · "));
    write(most, `${sum(process => process.cpu_percent).toFixed(0)} % CPU · ${bytes(sum(process => process.rss_bytes))}`);
    return `${kind} ${worst}`;
  }
}

function arrow() {
  return draw("defs", {}, draw("marker", {id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto"},
    draw("path", {d: "M0 0L8 4L0 8z"})));
}
