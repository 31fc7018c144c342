// The playground: a prompt or a chat is sent, and its tokens are shown as they come.

import {call, events, getJson} from "./api.js";
import {find, make, write} from "./dom.js";
import {milliseconds, rate} from "./format.js";
import {showPrompt, TokenView} from "./tokens.js";
import {loadWaterfall} from "./waterfall.js";

const WHOLE = new Set(["max_tokens", "top_k", "seed", "logprobs"]);

export class Playground {
  constructor() {
    this.form = find("play");
    this.output = new TokenView();
    this.messages = [];
    this.form.addEventListener("submit", event => {
      event.preventDefault();
      this.run();
    });
    this.form.addEventListener("change", () => this.showMode());
    find("stop").addEventListener("click", () => this.abort?.abort());
    find("clear").addEventListener("click", () => this.forget());
    find("prompt").addEventListener("keydown", event => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.form.requestSubmit();
    });
  }

  get isChat() { return this.form.elements.mode.value === "chat"; }

  /** Offers a chat first, for a model that was trained on chats; what the reader has typed stays. */
  openChat() {
    this.form.elements.mode.value = "chat";
    if (find("prompt").value === find("prompt").defaultValue) find("prompt").value = "Name the capital of France.";
    this.form.elements.temperature.value = 0;
    this.showMode();
  }

  showMode() {
    find("turns").hidden = find("clear").hidden = !this.isChat;
  }

  forget() {
    this.messages = [];
    find("turns").replaceChildren();
    find("prompt").focus();
  }

  /** Returns the fields of the form that say something. */
  params() {
    const params = {};
    for (const input of this.form.querySelectorAll(".knobs input")) {
      if (input.value !== "") params[input.name] = WHOLE.has(input.name) ? Number.parseInt(input.value, 10) : Number(input.value);
    }
    return params;
  }

  async run() {
    const text = find("prompt").value, id = `page-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
    this.abort = new AbortController();
    this.setRunning(true);
    this.output.clear();
    find("play-waterfall").replaceChildren();
    try {
      const usage = this.isChat ? await this.chat(text, id) : await this.generate(text, id);
      write(find("play-note"), usage);
    } catch (error) {
      write(find("play-note"), error.name === "AbortError" ? "stopped" : error.message);
    }
    this.setRunning(false);
    await loadWaterfall(id).then(table => find("play-waterfall").replaceChildren(table), () => {});
  }

  setRunning(isRunning) {
    find("run").disabled = isRunning;
    find("stop").disabled = !isRunning;
    if (isRunning) write(find("play-note"), "running …");
  }

  send(path, body, id) {
    return call(path, {json: body, headers: {"X-Request-Id": id}, signal: this.abort.signal});
  }

  async generate(prompt, id) {
    const tokens = this.tokenize({prompt});
    const reply = await this.send("generate", {prompt, stream: true, ...this.params()}, id);
    let last;
    for await (const event of events(reply)) {
      if (event.error) throw new Error(event.error.message);
      for (const token of event.logprobs ?? []) this.output.add(token, token.top);
      if (!event.logprobs) this.output.addText(event.text);
      last = event;
    }
    this.output.finish();
    showPrompt(await tokens, last.usage.cached_tokens);
    const {ttft_ms: ttft, tokens_per_s: speed, seed} = last.timing;
    return describe(last.usage, last.finish_reason, ttft, speed) + `, seed ${seed}`;
  }

  async chat(text, id) {
    const messages = [...this.messages, {role: "user", content: text}];
    const tokens = this.tokenize({messages});
    const {logprobs, ...params} = this.params();
    const begun = performance.now();
    const reply = await this.send("v1/chat/completions", {
      messages, stream: true, stream_options: {include_usage: true}, logprobs: logprobs !== undefined, top_logprobs: logprobs, ...params,
    }, id);
    let answer = "", first, usage, reason = "";
    for await (const event of events(reply)) {
      if (event.error) throw new Error(event.error.message);
      const choice = event.choices[0];
      answer += choice?.delta?.content ?? "";
      reason = choice?.finish_reason ?? reason;
      usage = event.usage ?? usage;
      for (const token of choice?.logprobs?.content ?? []) {
        first ??= performance.now();
        this.output.add(token, token.top_logprobs);
      }
      if (logprobs === undefined && choice?.delta?.content) this.output.addText(choice.delta.content);
    }
    this.output.finish();
    this.addTurn({role: "user", content: text}, {role: "assistant", content: answer});
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    showPrompt(await tokens, cached);
    const speed = first && (usage.completion_tokens - 1) / (performance.now() - first) * 1000;
    return describe({...usage, cached_tokens: cached}, reason, first && first - begun, speed);
  }

  addTurn(...messages) {
    this.messages.push(...messages);
    find("turns").append(...messages.map(({role, content}) => make("li", {}, make("b", {}, role), content)));
    find("turns").scrollTop = find("turns").scrollHeight;
    find("prompt").value = "";
  }

  /** Returns the prompt's tokens as text; none where they cannot be told. */
  async tokenize(body) {
    return getJson("tokenize", {json: {...body, return_token_strs: true}}).then(reply => reply.token_strs, () => []);
  }
}

function describe(usage, reason, ttft, speed) {
  const parts = [`${usage.prompt_tokens} prompt tokens (${usage.cached_tokens} cached)`, `${usage.completion_tokens} output tokens, ended: ${reason}`];
  if (ttft) parts.push(`first after ${milliseconds(ttft)} ms`);
  if (speed) parts.push(`${rate(speed)} tokens/s`);
  return parts.join(", ");
}
