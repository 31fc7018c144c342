// Tools by hand: the definitions that the user types, and the results that the user sends for the model's calls.

import {make} from "./dom.js";

export const EXAMPLE = JSON.stringify([{
  type: "function",
  function: {
    name: "get_weather", description: "Returns the weather in a city.",
    parameters: {type: "object", properties: {city: {type: "string"}}, required: ["city"]},
  },
}], null, 2);

/** Returns the definitions in `text`, `undefined` for none. Throws an `Error` for people. */
export function readTools(text) {
  if (!text?.trim()) return undefined;
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`the tools are not JSON: ${error.message}`);
  }
  if (!Array.isArray(tools)) throw new Error("the tools must be a JSON array: [{\"type\": \"function\", …}]");
  tools.forEach((tool, place) => {
    const wrong = tool?.type !== "function" ? "\"type\" must be \"function\"" : typeof tool.function?.name !== "string" && "\"function\" needs a \"name\"";
    if (wrong) throw new Error(`tool ${place + 1}: ${wrong}`);
  });
  return tools.length ? tools : undefined;
}

/** Returns the cards of the calls; with `send`, each has a field for its result, and `send` gets the tool messages. */
export function makeCalls(calls, send) {
  const cards = calls.map(({function: {name, arguments: given}}) => make("div", {class: "call"}, make("p", {}, "Calls ", make("code", {}, name)),
    make("pre", {}, indented(given)),
    ...(send ? [make("textarea", {rows: 2, required: true, "aria-label": `Result of ${name}`, placeholder: "Result, as text or JSON"})] : [])));
  if (!send || !calls.length) return cards;
  const form = make("form", {class: "results"}, ...cards, make("div", {class: "actions"}, make("button", {class: "main"}, `Send the result${calls.length > 1 ? "s" : ""}`)));
  form.addEventListener("submit", event => {
    event.preventDefault();
    const fields = form.querySelectorAll("textarea");
    send(calls.map(({id, function: {name}}, place) => ({role: "tool", tool_call_id: id, name, content: fields[place].value})));
  });
  return [form];
}

/** JSON on several lines; as it is while it is not whole. */
function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
