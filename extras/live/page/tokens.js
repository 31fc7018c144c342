// Tokens coloured by their probabilities, and on demand with their alternatives.

import {draw, find, make} from "./dom.js";
import {percent} from "./format.js";

/** The output of one run. Arrow keys and the pointer choose a token; its alternatives are shown below. */
export class TokenView {
  constructor() {
    this.place = find("output");
    this.tokens = [];
    this.chosen = -1;
    this.place.addEventListener("keydown", event => this.move(event));
    this.place.addEventListener("pointerover", event => this.choose([...this.place.children].indexOf(event.target)));
  }

  clear() {
    this.decoder = new TextDecoder(); // a character may take the bytes of several tokens
    this.tokens = [];
    this.chosen = -1;
    this.place.replaceChildren();
    find("alternatives").replaceChildren();
  }

  /** Adds a token of the reply; `top` are the likeliest tokens in its place. */
  add(token, top) {
    const span = make("span", {class: "token"}, this.decoder.decode(Uint8Array.from(token.bytes), {stream: true}));
    span.style.backgroundColor = colour(token.logprob);
    this.tokens.push({...token, top});
    this.append(span);
  }

  /** Adds text of which no more is known. */
  addText(text) {
    this.append(make("span", {}, text));
  }

  /** Shows what is left of a character that has not become whole. */
  finish() {
    this.addText(this.decoder.decode());
  }

  append(span) {
    this.place.append(span);
    this.place.scrollTop = this.place.scrollHeight;
  }

  move(event) {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    if (!step || !this.tokens.length) return;
    event.preventDefault();
    this.choose(Math.min(this.tokens.length - 1, Math.max(0, this.chosen + step)));
  }

  choose(place) {
    if (!this.tokens[place] || place === this.chosen) return;
    this.place.children[this.chosen]?.classList.remove("chosen");
    this.chosen = place;
    this.place.children[place].classList.add("chosen");
    find("alternatives").replaceChildren(...describe(this.tokens[place]));
  }
}

/** Green for what was expected, orange for what was not: the more bits of surprise, the stronger. */
function colour(logprob) {
  const bits = -logprob / Math.LN2;
  const name = bits < 1 ? "--likely" : "--unlikely";
  const strength = bits < 1 ? 0.3 * (1 - bits) : Math.min(0.5, (bits - 1) / 14);
  return `rgba(${getComputedStyle(document.documentElement).getPropertyValue(name)}, ${strength.toFixed(2)})`;
}

function describe(token) {
  const isSampled = other => other.token === token.token && other.logprob === token.logprob;
  const others = token.top.some(isSampled) ? token.top : [...token.top, token];
  const rows = others.map(other => make("tr", isSampled(other) ? {class: "sampled"} : {},
    make("th", {scope: "row", class: "mono"}, JSON.stringify(other.token)), make("td", {class: "num"}, percent(Math.exp(other.logprob))),
    make("td", {}, draw("svg", {viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true"},
      draw("rect", {class: isSampled(other) ? "decode" : "time", width: 100 * Math.exp(other.logprob), height: 8})))));
  return [make("table", {}, make("caption", {class: "hidden"}, `The token ${JSON.stringify(token.token)} and its alternatives`),
    make("tbody", {}, ...rows))];
}

/** Shows the tokens of a prompt, of which the first `numCached` were found in the prefix cache. */
export function showPrompt(texts, numCached) {
  const spans = texts.map((text, place) =>
    make("span", {class: place < numCached ? "token hit" : "token cut", title: place < numCached ? "from the prefix cache" : null}, readable(text)));
  find("prompt-tokens").replaceChildren(...spans);
}

/** A token as the vocabulary has it, with its marks for spaces and line ends as what they stand for. */
const readable = text => text.replace(/[Ġ▁]/g, " ").replace(/Ċ/g, "\n");
