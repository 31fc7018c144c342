// The playground: a prompt, as it is or as a message of a chat, is sent, and its tokens are shown as they come.

import {ask, summarize} from "./answer.js";
import {call, events, getJson} from "./api.js";
import {find, write} from "./dom.js";
import {showPrompt, TokenView} from "./tokens.js";
import {loadWaterfall} from "./waterfall.js";

export class Playground {
  constructor() {
    this.form = find("play");
    this.output = new TokenView();
    this.form.addEventListener("submit", event => {
      event.preventDefault();
      this.run();
    });
    find("stop").addEventListener("click", () => this.abort?.abort());
    find("prompt").addEventListener("keydown", event => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.form.requestSubmit();
    });
  }

  /** Offers a chat first, for a model that was trained on chats; what the reader has typed stays. */
  openChat() {
    this.form.elements.mode.value = "chat";
    if (find("prompt").value === find("prompt").defaultValue) find("prompt").value = "Name the capital of France.";
    this.form.elements.temperature.value = 0;
  }

  /** Returns the fields of the form that say something. */
  params() {
    const filled = [...this.form.querySelectorAll(".knobs input")].filter(({value}) => value !== "");
    return Object.fromEntries(filled.map(({name, value}) => [name, Number(value)]));
  }

  async run() {
    const text = find("prompt").value, id = `page-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
    this.abort = new AbortController();
    this.setRunning(true);
    this.output.clear();
    find("play-waterfall").replaceChildren();
    try {
      const usage = this.form.elements.mode.value === "chat" ? await this.chat(text, id) : await this.generate(text, id);
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

  async generate(prompt, id) {
    const tokens = this.tokenize({prompt});
    const reply = await call("generate", {json: {prompt, stream: true, ...this.params()}, headers: {"X-Request-Id": id}, signal: this.abort.signal});
    let last;
    for await (const event of events(reply)) {
      if (event.error) throw new Error(event.error.message);
      for (const token of event.logprobs ?? []) this.output.add(token, token.top);
      if (!event.logprobs) this.output.addText(event.text);
      last = event;
    }
    this.output.finish();
    showPrompt(await tokens, last.usage.cached_tokens);
    const {ttft_ms: firstMs, decode_ms: decodeMs, seed} = last.timing;
    return `${summarize({usage: last.usage, reason: last.finish_reason, firstMs, totalMs: firstMs + decodeMs})}, seed ${seed}`;
  }

  async chat(text, id) {
    const messages = [{role: "user", content: text}];
    const tokens = this.tokenize({messages});
    const {logprobs, ...params} = this.params();
    let numWritten = 0;
    const add = ({content, tokens: seen}) => {
      for (const token of seen.slice(this.output.tokens.length)) this.output.add(token, token.top_logprobs);
      if (logprobs === undefined) this.output.addText(content.slice(numWritten));
      numWritten = content.length;
    };
    const answer = await ask({messages, id, signal: this.abort.signal, logprobs: logprobs !== undefined, top_logprobs: logprobs, ...params}, add);
    this.output.finish();
    showPrompt(await tokens, answer.usage.prompt_tokens_details?.cached_tokens ?? 0);
    return summarize(answer);
  }

  /** Returns the prompt's tokens as text; none where they cannot be told. */
  async tokenize(body) {
    return getJson("tokenize", {json: {...body, return_token_strs: true}}).then(reply => reply.token_strs, () => []);
  }
}
