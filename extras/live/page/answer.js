// One answer of the model: it is asked for, read from its stream, and taken apart into reasoning, text and tool calls.

import {call, events} from "./api.js";

const SETTINGS = ["temperature", "top_p", "max_tokens", "seed"];

/** Returns the fields of a message that the model reads. */
const readable = ({role, content, reasoning, calls}) => ({
  role, content, ...(reasoning ? {reasoning_content: reasoning} : {}), ...(calls?.length ? {tool_calls: calls} : {}),
});

/** Asks for the answer to `messages` and calls `onChange` for each piece. Returns the message; throws `Refused`. */
export async function ask({messages, settings, model, id, signal}, onChange) {
  const answer = {role: "assistant", content: "", reasoning: "", calls: [], id, tokens: [], usage: null, reason: ""};
  const system = settings.system ? [{role: "system", content: settings.system}] : [];
  const chosen = Object.fromEntries(SETTINGS.filter(name => settings[name] !== undefined).map(name => [name, settings[name]]));
  const body = {
    model, messages: [...system, ...messages.map(readable)], stream: true, stream_options: {include_usage: true},
    logprobs: true, top_logprobs: 5, ...chosen, ...(settings.thinks === false ? {reasoning_effort: "none"} : {}),
  };
  const begun = performance.now();
  const reply = await call("v1/chat/completions", {json: body, headers: {"X-Request-Id": id}, signal});
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
