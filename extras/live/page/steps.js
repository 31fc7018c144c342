// The latest steps: what each computed, and how long it took.

import {draw, find, set, write} from "./dom.js";
import {count, milliseconds, rate} from "./format.js";

const SHOWN = 120, TOP = 64, BOTTOM = 32, GAP = 6;

export function showSteps(live) {
  const svg = find("steps");
  const isBusy = live.workers("scheduler").some(({state}) => state === "busy");
  const steps = [...live.steps.values()].filter(step => step.end !== null || isBusy).sort((a, b) => a.begin - b.begin).slice(-SHOWN);
  const spans = steps.map(step => ((step.end ?? live.now) - step.begin) / 1e6);
  const mostTokens = Math.max(8, ...steps.map(step => step.prefill + step.decode));
  const mostMs = Math.max(1, ...spans);
  set(svg, "viewBox", `0 0 ${SHOWN} ${TOP + GAP + BOTTOM}`);
  const bars = steps.flatMap((step, place) => {
    const x = SHOWN - steps.length + place + 0.1;
    const height = tokens => TOP * Math.sqrt(tokens / mostTokens);
    const all = height(step.prefill + step.decode), decode = all * step.decode / Math.max(1, step.prefill + step.decode);
    const time = BOTTOM * spans[place] / mostMs;
    return [
      bar(x, TOP - all, all - decode, "prefill"), bar(x, TOP - decode, decode, "decode"),
      bar(x, TOP + GAP + BOTTOM - time, time, step.end === null ? "step-runs" : "time"),
    ].filter(Boolean);
  });
  svg.replaceChildren(...bars);
  const before = live.gauges("scheduler").steps;
  const none = before ? `None since this page was opened; ${count(before)} before.` : "No step yet.";
  write(find("steps-text"), steps.length ? describe(live, steps, spans, mostTokens, mostMs) : none);
}

function bar(x, y, height, kind) {
  return height > 0 && draw("rect", {x, y, width: 0.8, height, class: kind});
}

function describe(live, steps, spans, mostTokens, mostMs) {
  const last = steps.at(-1), recent = steps.filter(step => live.now - step.begin < 1e9).length;
  const what = [last.prefill && `${last.prefill} prefill`, last.decode && `${last.decode} decode`].filter(Boolean).join(" + ");
  const engine = live.workers("scheduler").length > 1 ? ` (engine ${last.engine})` : "";
  const state = (last.end === null ? "running for" : "latest") + engine;
  return `${rate(recent)} steps/s · ${state} ${milliseconds(spans.at(-1))} ms: ${what || "no tokens"} · ` +
    `highest ${mostTokens} tokens, ${milliseconds(mostMs)} ms`;
}
