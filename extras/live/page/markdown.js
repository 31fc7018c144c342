// Markdown as elements: markdown-it parses, DOMPurify keeps what is harmless, highlight.js and KaTeX draw code and formulas.

import {highlighter, MarkdownIt, sanitizer, tex} from "./vendor/text.js";
import {make, set} from "./dom.js";
import {copy, iconButton} from "./icons.js";

const MAX_CHARACTERS = 200000, MAX_DEPTH = 32, MAX_CODE = 10000, MAX_CODE_LINE = 1000, MAX_FORMULA = 5000, MAX_FORMULAS = 1000;
const KEPT = {
  ALLOWED_TAGS: ["a", "blockquote", "br", "code", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s", "span", "strong",
    "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ALLOWED_ATTR: ["class", "href", "scope", "start"], ALLOWED_URI_REGEXP: /^https?:\/\//i, ADD_URI_SAFE_ATTR: ["scope", "start"], ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
const FORMULAS = {throwOnError: true, trust: false, strict: "ignore", maxSize: 20, maxExpand: 200};

const parser = new MarkdownIt({html: false, linkify: true, maxNesting: MAX_DEPTH, highlight}).use(tex, {delimiters: "all", render: formula});
parser.linkify.set({fuzzyLink: false, fuzzyEmail: false});
parser.disable("image");
// Each formula that is not closed is searched to the end of its paragraph.
parser.inline.ruler.before("math_inline_bracket", "formulas", ({src, pos, env}) => {
  if (src.startsWith("\\(", pos)) env.formulas = (env.formulas ?? 0) + 1;
  if (env.formulas === MAX_FORMULAS) throw new Error("too many formulas");
  return false;
});
let katex = null;

/**
 * Parses a text into blocks; it may end in the middle of a construct. One that is too long or nested too deeply stays as it is.
 * `done` and `last` return the elements of all blocks before the last one, which are complete whatever follows, and of the last one,
 * which begins at the line `lastLine`. `env` has the links that have been defined.
 */
export function parse(text, env = {}) {
  try {
    env.formulas = 0;
    const tokens = text.length > MAX_CHARACTERS ? [] : parser.parse(text, env);
    // The parser drops what is nested deeper.
    if (tokens.length && tokens.every(({level}) => level < MAX_DEPTH - 1)) {
      const last = tokens.findLastIndex(({level, nesting}) => level === 0 && nesting >= 0);
      return {lastLine: tokens[last].map[0], done: () => build(tokens.slice(0, last), env), last: () => build(tokens.slice(last), env)};
    }
  } catch (error) {
    console.info("A message is shown without its format.", error);
  }
  return {lastLine: 0, done: () => [], last: () => text ? [make("pre", {class: "plain"}, text)] : []};
}

function build(tokens, env) {
  for (const token of tokens) {
    if (token.type === "heading_open") env.level = Math.min(6, Number(token.tag[1]) + 2, (env.level ?? 2) + 1); // none is left out
    if (token.type.startsWith("heading_")) token.tag = `h${env.level}`;
    const style = token.attrs?.find(([name]) => name === "style"); // the alignment in a table; the page's policy allows no styles
    if (style) style.splice(0, 2, "class", style[1].replace("text-align:", ""));
    if (token.tag === "th") token.attrSet("scope", "col");
  }
  const fragment = sanitizer.sanitize(parser.renderer.render(tokens, parser.options, env), KEPT);
  for (const link of fragment.querySelectorAll("a")) {
    if (!link.href) link.replaceWith(...link.childNodes);
    set(link, "target", "_blank");
    set(link, "rel", "noopener noreferrer");
  }
  for (const table of fragment.querySelectorAll("table")) {
    const scroll = make("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": "Table"});
    table.replaceWith(scroll);
    scroll.append(table);
  }
  for (const code of fragment.querySelectorAll("pre > code")) frameCode(code);
  drawFormulas(fragment.querySelectorAll(".formula"));
  return [...fragment.childNodes];
}

/** Returns highlighted code as HTML, "" for code that stays as it is; some patterns of languages take quadratic time. */
function highlight(text, language) {
  if (text.length > MAX_CODE || !highlighter.getLanguage(language) || text.split("\n").some(({length}) => length > MAX_CODE_LINE)) return "";
  return highlighter.highlight(text, {language, ignoreIllegals: true}).value;
}

function frameCode(code) {
  const language = /language-(\S+)/.exec(code.className)?.[1], pre = code.parentElement;
  const button = iconButton("Copy", `Copy the ${language ?? "code"}`, () => copy(button, code.textContent));
  const frame = make("figure", {class: "code"}, make("figcaption", {}, make("span", {}, language ?? "text"), button));
  set(code, "class", "hljs");
  set(pre, "tabindex", 0);
  pre.replaceWith(frame);
  frame.append(pre);
}

/** Returns a formula as it was written; `drawFormulas` replaces it. */
function formula(text, isBlock) {
  const element = make("code", {class: isBlock ? "formula block" : "formula"}, text.trim());
  return isBlock ? `<p>${element.outerHTML}</p>\n` : element.outerHTML;
}

async function drawFormulas(places) {
  if (!places.length) return;
  if (!katex) {
    if (!document.getElementById("formulas")) document.head.append(make("link", {id: "formulas", rel: "stylesheet", href: new URL("vendor/formulas.css", import.meta.url)}));
    katex = await import("./vendor/formulas.js");
  }
  for (const place of [...places].slice(0, MAX_FORMULAS)) {
    const drawn = make("span", {class: place.className});
    try {
      if (place.textContent.length > MAX_FORMULA) continue;
      katex.render(place.textContent, drawn, {...FORMULAS, displayMode: place.classList.contains("block")});
      place.replaceWith(drawn);
    } catch {} // what is no formula stays as it was written
  }
}
