// Markdown as elements, from the tokens of markdown-it. Nothing in the text becomes markup of its own.

import "./markdown-it.umd.min.js";
import {make} from "./dom.js";

const MAX_CHARACTERS = 200000, MAX_DEPTH = 32;
const WEB = /^https?:\/\//i;

const parser = globalThis.markdownit({html: false, linkify: true, maxNesting: MAX_DEPTH});
parser.linkify.set({fuzzyLink: false, fuzzyEmail: false});
parser.disable("image");

/** Returns the elements of a text, which may end in the middle of a construct. A text that is too long or nested too deeply stays as it is. */
export function render(text) {
  try {
    const tokens = text.length > MAX_CHARACTERS ? [] : parser.parse(text, {});
    // The parser drops what is nested deeper.
    if (tokens.length && tokens.every(({level}) => level < MAX_DEPTH - 1)) return build(tokens);
  } catch (error) {
    console.warn("A message is shown without its format.", error);
  }
  return text ? [make("pre", {class: "plain"}, text)] : [];
}

/** Returns the nodes of a list of tokens; an opening token is an element around those up to its closing one. */
function build(tokens) {
  const open = [make("div")];
  for (const token of tokens) {
    const place = open.at(-1);
    if (token.nesting < 0) open.pop();
    else if (token.nesting) open.push(token.hidden ? place : openElement(token, place));
    else place.append(...leaf(token));
  }
  return [...open[0].childNodes];
}

/** Adds the element of an opening token to `place`; returns the one that its contents belong in. */
function openElement({type, tag, attrs}, place) {
  const {href, start} = Object.fromEntries(attrs ?? []);
  if (type === "heading_open") return append(place, make(`h${Math.min(6, Number(tag[1]) + 2)}`));
  if (type === "table_open") return append(append(place, make("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": "Table"})), make("table"));
  if (type === "link_open") return append(place, WEB.test(href) ? make("a", {href, target: "_blank", rel: "noopener noreferrer"}) : make("span"));
  return append(place, make(tag, {start, scope: tag === "th" ? "col" : null}));
}

function append(place, element) {
  place.append(element);
  return element;
}

function leaf({type, tag, content, children, info}) {
  if (type === "inline") return build(children);
  if (type === "fence" || type === "code_block") return [code(content.replace(/\n$/, ""), info.trim().split(" ", 1)[0])];
  if (type === "softbreak") return ["\n"];
  return [tag ? make(tag, {}, ...content ? [content] : []) : content];
}

function code(text, language) {
  const button = make("button", {type: "button", class: "copy", "aria-label": `Copy the ${language || "code"}`}, "Copy");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return make("figure", {class: "code"}, make("figcaption", {}, make("span", {}, language || "text"), button),
    make("pre", {tabindex: 0}, make("code", {}, text)));
}
