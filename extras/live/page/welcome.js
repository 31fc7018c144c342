// The first screen: the model, what it can do, and suggestions that suit it.

import {getJson} from "./api.js";
import {find, make, write} from "./dom.js";
import {count} from "./format.js";
import {nameOf} from "./models.js";
import {EXAMPLE} from "./tools.js";

const CHATS = [
  {title: "Explain something", text: "Explain in three sentences how a canal lock lifts a boat."},
  {title: "Write code", text: "Write a Python function that returns true if a word is a palindrome, with an example."},
  {title: "Ask for a fact", text: "Name the capital of France."},
];
const CALL = {title: "Call a tool", text: "What is the weather in Rome?", tools: EXAMPLE};
const IMAGES = {max_images: 16, max_image_mb: 20}; // limits of servers by default
const TEXTS = ["Once upon a time, there was", "The city of Rome is", "ROMEO: What light is this?"]
  .map(text => ({title: "Continue this", text}));

/** Returns what is known of a model: its `context`, in tokens, sampling `defaults`, what it `can` do, limits of `images`, and where it runs; of one that is not loaded, less. */
export async function readFacts(model, isLoaded) {
  const info = isLoaded ? await getJson("server_info", {model: model.parent ?? model.id}).catch(() => null) : null;
  const {device, dtype} = Object.values(info?.placement ?? {})[0] ?? {};
  return {
    context: model.max_model_len ?? info?.model.max_model_len, defaults: info?.model.sampling_defaults ?? {}, isChat: info?.model.has_chat_template ?? true,
    calls: model.tool_calls, images: model.capabilities?.includes("vision") ? {...IMAGES, ...info?.config.images} : null, where: device && `on ${device}, ${dtype}`,
  };
}

/** Shows the first screen; `choose` gets the suggestion that is chosen. */
export function showWelcome(model, {context, isChat, calls, images, where}, choose) {
  write(find("welcome-model"), nameOf(model.id));
  find("welcome-facts").replaceChildren(...[
    context && `${count(context)} tokens of context`, isChat ? "chats" : "continues texts; it was not trained on chats", calls && "calls tools", images && "reads images", where,
  ].filter(Boolean).map(text => make("li", {}, text)));
  const suggestions = !isChat ? TEXTS : calls && calls !== "generic" ? [...CHATS.slice(0, 2), CALL] : CHATS;
  find("suggestions").replaceChildren(...suggestions.map(suggestion => {
    const button = make("button", {type: "button"}, make("strong", {}, suggestion.title), make("span", {}, suggestion.text));
    button.addEventListener("click", () => choose(suggestion));
    return make("li", {}, button);
  }));
}
