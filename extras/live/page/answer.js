// One answer of the model: it is asked for, read from its stream, and taken apart into reasoning, text and tool calls.

import {call, events} from "./api.js";
import {milliseconds, rate, seconds} from "./format.js";

/** Returns the fields of a message that the model reads. */
const readable = ({role, content, reasoning, calls, tool_call_id}) => ({
  role, content, tool_call_id, reasoning_content: reasoning || undefined, tool_calls: calls?.length ? calls : undefined,
});

/** Asks for the answer to `messages` with other fields of the body, and calls `onChange` for each piece. Returns the message; throws `Refused`. */
export async function ask({messages, id, signal, ...params}, onChange) {
  const answer = {role: "assistant", content: "", reasoning: "", calls: [], id, tokens: [], usage: null, reason: ""};
  const body = {messages: messages.map(readable), stream: true, stream_options: {include_usage: true}, logprobs: true, top_logprobs: 5, ...params};
  const begun = performance.now();
  const reply = await call("v1/chat/completions", {json: body, headers: {"X-Request-Id": id}, signal});
  answer.loadMs = Number(reply.headers.get("X-Model-Load-Ms"));
  for await (const event of events(reply)) {
    if (event.error) throw new Error(event.error.message);
    add(answer, event.choices[0]);
    if (event.usage) answer.usage = event.usage;
    if (answer.tokens.length && !answer.firstMs) answer.firstMs = performance.now() - begun;
    onChange(answer);
  }
  answer.totalMs = performance.now() - begun;
  return answer;
}

function add(answer, choice) {
  if (!choice) return;
  const {content, reasoning_content: reasoning, tool_calls: calls} = choice.delta;
  answer.content += content ?? "";
  answer.reasoning += reasoning ?? "";
  for (const {index, id, function: called} of calls ?? []) {
    const known = answer.calls[index] ??= {id, type: "function", function: {name: "", arguments: ""}};
    known.function.name += called.name ?? "";
    known.function.arguments += called.arguments ?? "";
  }
  answer.tokens.push(...choice.logprobs?.content ?? []);
  answer.reason = choice.finish_reason ?? answer.reason;
}

/** What an answer took, in words; times only if they were measured. */
export function summarize({usage, reason, loadMs, firstMs, totalMs}) {
  const cached = usage.cached_tokens ?? usage.prompt_tokens_details?.cached_tokens ?? 0, speed = (usage.completion_tokens - 1) / (totalMs - firstMs) * 1000;
  return [
    `${usage.prompt_tokens} prompt tokens (${cached} cached)`, `${usage.completion_tokens} output tokens, ended: ${reason}`,
    loadMs && `model loaded in ${seconds(loadMs / 1000)}`, firstMs && `first after ${milliseconds(firstMs)} ms`, speed && `${rate(speed)} tokens/s`,
  ].filter(Boolean).join(", ");
}
