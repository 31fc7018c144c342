// One answer of the model: it is asked for, read from its stream, and taken apart into reasoning, text and tool calls.

import {call, events} from "./api.js";
import {count, milliseconds, rate, seconds} from "./format.js";
import {readImages} from "./images.js";

const STREAM = {stream: true, stream_options: {include_usage: true, continuous_usage_stats: true, include_progress: true}};
const MOST_TEXT_TOKENS = 256; // a model that only continues texts seldom ends one

/** Returns the fields of a message that the model reads; attached files are before its text. `urls`: of its images. */
function readable({role, content, files = [], reasoning, calls, tool_call_id}, urls) {
  const texts = files.filter(({image}) => !image).map(({name, text}) => {
    const fence = "`".repeat([...text.matchAll(/`+/g)].reduce((most, [marks]) => Math.max(most, marks.length + 1), 3));
    return `${name}:\n${fence}\n${text}\n${fence}`;
  });
  const text = [...texts, content].filter(Boolean).join("\n\n"), images = files.filter(({image}) => image);
  const parts = [...images.map(({image}) => ({type: "image_url", image_url: {url: urls.get(image)}})), ...text ? [{type: "text", text}] : []];
  return {role, content: images.length ? parts : text, tool_call_id, reasoning_content: reasoning || undefined, tool_calls: calls?.length ? calls : undefined};
}

/**
 * Asks for the answer to `messages` with other fields of the body, and calls `onChange` for each piece. Returns the message; throws
 * `Refused`. `begun`: an answer that is to be continued. `isText`: the model was trained on no chats, and continues their text.
 */
export async function ask({messages, id, signal, begun, isText, ...params}, onChange) {
  const answer = {role: "assistant", content: begun?.content ?? "", reasoning: begun?.reasoning ?? "", calls: [], id, tokens: [], usage: null, reason: ""};
  const urls = await readImages(messages), read = [...messages, ...begun ? [begun] : []].map(message => readable(message, urls));
  const continues = isText && !urls.size, path = continues ? "v1/completions" : "v1/chat/completions";
  const body = continues ? {prompt: read.map(({content}) => content).join(""), max_tokens: MOST_TEXT_TOKENS, ...STREAM, ...params, tools: undefined, reasoning_effort: undefined}
    : {messages: read, logprobs: true, top_logprobs: 5, ...begun && {continue_final_message: true}, ...STREAM, ...params};
  const begunMs = performance.now(), report = progress => onChange(Object.assign(answer, {progress}));
  const reply = await call(path, {json: body, headers: {"X-Request-Id": id}, signal});
  answer.loadMs = Number(reply.headers.get("X-Model-Load-Ms"));
  for await (const event of events(reply, report)) {
    if (event.error) throw new Error(event.error.message);
    add(answer, event.choices[0], performance.now() - begunMs);
    answer.usage = event.usage ?? answer.usage;
    answer.totalMs = performance.now() - begunMs;
    onChange(answer);
  }
  return answer;
}

function add(answer, choice, ms) {
  if (!choice) return;
  const {content, reasoning_content: reasoning, tool_calls: calls} = choice.delta ?? {content: choice.text};
  answer.content += content ?? "";
  answer.reasoning += reasoning ?? "";
  for (const {index, id, function: called} of calls ?? []) {
    const known = answer.calls[index] ??= {id, type: "function", function: {name: "", arguments: ""}};
    known.function.name += called.name ?? "";
    known.function.arguments += called.arguments ?? "";
  }
  answer.tokens.push(...choice.logprobs?.content ?? []);
  answer.reason = choice.finish_reason ?? answer.reason;
  if (answer.tokens.length || content || reasoning || calls) answer.firstMs ??= ms;
  if (reasoning) answer.thoughtMs = ms;
}

/** The tokens a second of an answer in words, "" if they were not measured. */
export function speedOf({usage, firstMs, totalMs}) {
  const speed = (usage?.completion_tokens - 1) / (totalMs - firstMs) * 1000;
  return speed > 0 && speed < Infinity ? `${rate(speed)} tokens/s` : "";
}

/** What an answer took, in words; times only if they were measured. */
export function summarize(answer) {
  const {usage, reason, loadMs, firstMs} = answer, cached = usage.cached_tokens ?? usage.prompt_tokens_details?.cached_tokens ?? 0;
  return [
    `${count(usage.prompt_tokens)} prompt tokens (${count(cached)} cached)`, `${count(usage.completion_tokens)} output tokens, ended: ${reason}`,
    loadMs && `model loaded in ${seconds(loadMs / 1000)}`, firstMs && `first after ${milliseconds(firstMs)} ms`, speedOf(answer),
  ].filter(Boolean).join(", ");
}
