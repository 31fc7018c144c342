// The KV cache: its pages, and on demand the radix tree of the prefix cache.

import {getJson} from "./api.js";
import {draw, find, make, set, write} from "./dom.js";
import {count, percent} from "./format.js";

export function showPages(live) {
  const gauges = live.gauges("scheduler"), all = gauges.pages_all;
  if (!all) return;
  const svg = find("pages");
  set(svg, "viewBox", "0 0 1000 10");
  const used = 1000 * gauges.pages_in_use / all, kept = 1000 * (all - gauges.pages_free - gauges.pages_in_use) / all;
  svg.replaceChildren(
    draw("rect", {x: 0, y: 0, width: used, height: 10, class: "held"}),
    draw("rect", {x: used, y: 0, width: Math.max(0, kept), height: 10, class: "kept"}));
  const hits = gauges.prompt_tokens ? ` ${percent(gauges.prefix_hit_tokens / gauges.prompt_tokens)} of all prompt tokens were found in it.` : "";
  write(find("pages-text"), `${count(gauges.pages_in_use)} of ${count(all)} pages in use, ` +
    `${count(all - gauges.pages_free - gauges.pages_in_use)} kept for prompts to come, ${count(gauges.pages_free)} free; ` +
    `${count(gauges.preemptions)} preemptions.${hits}`);
}

/** The tree is asked for, and not streamed: the scheduler answers between two steps. */
export function connectTree() {
  find("tree-show").addEventListener("click", async () => {
    try {
      const tree = await getJson("cache/tree?limit=200");
      showTree(tree);
      write(find("tree-show"), "Ask again");
      write(find("tree-note"), `${tree.nodes.length} of ${tree.num_nodes} nodes, ${count(tree.cached_tokens)} tokens, ` +
        `${count(tree.evictable_tokens)} of them can be evicted`);
    } catch (error) {
      write(find("tree-note"), error.message);
    }
  });
}

function showTree({nodes}) {
  const children = new Map(nodes.map(node => [node.number, []])), roots = [];
  for (const node of nodes) (children.get(node.parent) ?? roots).push(node);
  const longest = Math.max(1, ...nodes.map(node => node.start + node.tokens));
  const items = [];
  const add = node => {
    items.push(makeItem(node, longest));
    children.get(node.number).sort((a, b) => b.tokens - a.tokens).forEach(add);
  };
  roots.sort((a, b) => b.tokens - a.tokens).forEach(add);
  find("tree").replaceChildren(...items);
}

/** A bar from the first to the last token of the node, on the scale of the longest prompt. */
function makeItem(node, longest) {
  const span = make("span", {class: "span"});
  span.style.width = `${Math.max(0.5, 100 * node.tokens / longest)}%`;
  const who = node.request_id ?? `uid ${node.uid}`;
  const used = node.requests_using ? `, used by ${node.requests_using}` : "";
  const item = make("li", {}, span, make("span", {class: "text"},
    `${node.start}–${node.start + node.tokens}`, make("span", {class: "dim"}, ` ${who}${used}${node.is_salted ? ", salted" : ""}`)));
  item.style.marginLeft = `${Math.min(70, 100 * node.start / longest)}%`;
  return item;
}
