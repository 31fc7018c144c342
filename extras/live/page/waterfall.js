// The stages of one request, each a bar from its begin to its end; they sum to the whole time.

import {getJson} from "./api.js";
import {draw, make} from "./dom.js";
import {milliseconds} from "./format.js";

const WIDTH = 1000;

/** Returns the table of a request by uid or by the id of its HTTP request; `model` if it is not the page's. Throws `Refused`. */
export async function loadWaterfall(id, model) {
  const {choices} = await getJson(`requests/${encodeURIComponent(id)}`, {model});
  return make("div", {}, ...choices.map(makeWaterfall));
}

function makeWaterfall(request) {
  const {total_ms: total, stages} = request;
  const rows = stages.map(stage => make("tr", {"data-ms": stage.duration_ms},
    make("th", {scope: "row"}, stage.stage + (stage.attempt ? ` (attempt ${stage.attempt + 1})` : "")),
    make("td", {class: "num"}, milliseconds(stage.duration_ms)),
    make("td", {class: "lane"}, makeLane(stage, request))));
  const what = `${request.request_id}: ${request.prompt_tokens ?? "?"} prompt tokens, ${request.cached_tokens ?? 0} from the ` +
    `cache, ${request.output_tokens} output tokens; ${request.finish_reason ? `ended: ${request.finish_reason}` : request.state}`;
  return make("table", {class: "waterfall", "data-total-ms": total},
    make("caption", {class: "dim"}, what),
    make("thead", {}, make("tr", {}, make("th", {scope: "col"}, "Stage"), make("th", {scope: "col", class: "num"}, "ms"),
      make("td", {}))),
    make("tbody", {}, ...rows),
    make("tfoot", {}, make("tr", {}, make("th", {scope: "row"}, "in all"), make("td", {class: "num"}, milliseconds(total)), make("td", {}))));
}

/** Within prefill the chunks are marked, within decode the ends of steps. */
function makeLane(stage, request) {
  const scale = WIDTH / Math.max(request.total_ms, 0.001), end = stage.begin_ms + stage.duration_ms;
  const lane = draw("svg", {viewBox: `0 0 ${WIDTH} 12`, preserveAspectRatio: "none", "aria-hidden": "true"},
    draw("rect", {class: "base", x: 0, y: 5, width: WIDTH, height: 2}),
    draw("rect", {class: `stage-${stage.stage}`, x: stage.begin_ms * scale, y: 0, width: Math.max(stage.duration_ms * scale, 1.5), height: 12}));
  const marks = {prefill: request.chunks.map(chunk => chunk.begin_ms), decode: request.step_ends_ms}[stage.stage] ?? [];
  const inside = marks.filter(ms => ms > stage.begin_ms && ms < end);
  if (inside.length < 150) lane.append(...inside.map(ms => draw("rect", {class: "tick", x: ms * scale, y: 3, width: 1, height: 6})));
  return lane;
}
