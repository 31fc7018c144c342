// The chat: puts its parts together, and keeps what is shown equal to the conversation that is open.

import {ask} from "./answer.js";
import {call, getJson, getKey, setKey} from "./api.js";
import {Conversations} from "./conversations.js";
import {find, make, set, write} from "./dom.js";
import {milliseconds, rate} from "./format.js";
import {render} from "./markdown.js";
import {TokenView} from "./tokens.js";
import {loadWaterfall} from "./waterfall.js";

const STATUS_MS = 3000, MIN_DRAW_MS = 60;
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];

const conversations = new Conversations();
const tokens = new TokenView();
const known = new Map(); // the tokens of answers of this visit, by the id of their request
let open = conversations.all[0] ?? conversations.create();
let running = null; // what stops the answer that is being written

function showAll() {
  showList();
  showSettings();
  find("messages").replaceChildren(...open.messages.map((message, place) => makeMessage(message, place)));
  find("messages").scrollTop = find("messages").scrollHeight;
}

function showList() {
  find("list").replaceChildren(...conversations.all.filter(({messages}) => messages.length || messages === open.messages).map(conversation => {
    const title = conversation.title || "New conversation";
    const choose = make("button", {type: "button", class: "open", "aria-current": conversation === open ? "true" : null}, title);
    const remove = make("button", {type: "button", class: "delete", "aria-label": `Delete ${title}`}, "×");
    choose.addEventListener("click", () => openConversation(conversation));
    remove.addEventListener("click", () => {
      conversations.remove(conversation);
      openConversation(conversation === open ? conversations.all[0] ?? conversations.create() : open);
    });
    return make("li", {"data-chosen": conversation === open}, choose, remove);
  }));
}

function openConversation(conversation) {
  running?.abort();
  open = conversation;
  set(find("side"), "data-open", null);
  set(find("menu"), "aria-expanded", "false");
  closeDetails();
  showAll();
  find("text").focus();
}

/** Returns the item of a message; `place` is its index. */
function makeMessage(message, place) {
  const text = make("div", {class: "text"});
  const item = make("li", {class: message.role}, make("p", {class: "who"}, message.role === "user" ? "You" : "Model"));
  const actions = make("div", {class: "message-actions"});
  if (message.role === "user") {
    text.append(message.content);
    addAction(actions, "Edit", () => edit(item, place));
  } else {
    if (message.reasoning) {
      const isOpen = !message.content && !message.reason;
      item.append(make("details", {class: "thought", open: isOpen ? "" : null}, make("summary", {}, "Reasoning"), make("div", {class: "text"}, message.reasoning)));
    }
    text.append(...render(message.content));
    addAction(actions, "Copy", () => navigator.clipboard.writeText(message.content));
    addAction(actions, "Regenerate", () => answerFrom(place));
    addAction(actions, "How it was made", () => showDetails(message));
    const cached = message.usage?.prompt_tokens_details?.cached_tokens;
    if (message.usage) actions.append(make("span", {class: "dim"}, `${message.usage.completion_tokens} tokens, ${cached ?? 0} of the prompt's ${message.usage.prompt_tokens} cached`));
  }
  item.append(text, ...(message.calls ?? []).map(makeCall), ...(message.error ? [make("p", {class: "error"}, message.error)] : []), actions);
  return item;
}

function makeCall({function: {name, arguments: given}}) {
  return make("div", {class: "call"}, make("p", {}, "Calls ", make("code", {}, name)), make("pre", {tabindex: 0}, given));
}

function addAction(place, label, act) {
  const button = make("button", {type: "button"}, label);
  button.addEventListener("click", act);
  place.append(button);
}

/** Replaces a message by a form; once sent, the conversation continues from there. */
function edit(item, place) {
  const area = make("textarea", {rows: 4, "aria-label": "Edited message"});
  area.value = open.messages[place].content;
  const form = make("form", {class: "editing"}, area, make("div", {class: "actions"}, make("button", {class: "main"}, "Send")));
  addAction(form.lastChild, "Cancel", showAll);
  form.addEventListener("submit", event => {
    event.preventDefault();
    if (!area.value.trim()) return;
    open.messages[place] = {role: "user", content: area.value};
    answerFrom(place + 1);
  });
  item.replaceChildren(form);
  area.focus();
}

/** Drops the messages from `place` on and asks for the answer to those before it. */
async function answerFrom(place) {
  running?.abort();
  const conversation = open, control = running = new AbortController();
  conversation.messages.length = place;
  conversation.title ||= conversation.messages[0].content.slice(0, 60);
  const id = `chat-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
  const asked = [...conversation.messages], answer = {role: "assistant", content: "", reasoning: "", calls: [], id};
  conversation.messages.push(answer);
  showAll();
  setRunning(true);
  let drawnMs = 0;
  const draw = part => {
    Object.assign(answer, part, {tokens: undefined});
    known.set(id, part.tokens);
    if (conversation !== open || performance.now() - drawnMs < MIN_DRAW_MS) return;
    drawnMs = performance.now();
    redraw(answer);
  };
  try {
    draw(await ask({messages: asked, settings: conversation.settings, model: find("model").value, id, signal: control.signal}, draw));
    write(find("note"), speed(answer));
  } catch (error) {
    if (error.name !== "AbortError") answer.error = error.message;
    answer.reason ||= "stop";
    write(find("note"), error.name === "AbortError" ? "stopped" : "");
    if (error.status === 401) askForKey();
  }
  if (running === control) {
    running = null;
    setRunning(false);
  }
  conversations.save();
  if (conversation === open) redraw(answer);
  showList();
}

function redraw(answer) {
  const place = open.messages.indexOf(answer), list = find("messages");
  const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 80;
  list.children[place]?.replaceWith(makeMessage(answer, place));
  if (isAtEnd) list.scrollTop = list.scrollHeight;
}

function speed({usage, firstMs, totalMs}) {
  if (!usage || !firstMs) return "";
  const each = (usage.completion_tokens - 1) / (totalMs - firstMs) * 1000;
  return `first token after ${milliseconds(firstMs)} ms${usage.completion_tokens > 1 ? `, ${rate(each)} tokens/s` : ""}`;
}

async function showDetails(message) {
  find("details").hidden = false;
  const {usage} = message;
  write(find("details-usage"), usage ? `${usage.prompt_tokens} prompt tokens, ${usage.prompt_tokens_details?.cached_tokens ?? 0} of them ` +
    `from the prefix cache; ${usage.completion_tokens} output tokens; ended: ${message.reason}` : "");
  tokens.clear();
  for (const token of known.get(message.id) ?? []) tokens.add(token, token.top_logprobs);
  tokens.finish();
  if (!known.has(message.id)) tokens.addText("The probabilities are not kept after a visit.");
  find("timeline").replaceChildren(await loadWaterfall(message.id).catch(() => make("p", {class: "dim"}, "The server no longer knows this request.")));
}

function closeDetails() {
  find("details").hidden = true;
}

function setRunning(isRunning) {
  find("send").disabled = isRunning;
  find("stop").disabled = !isRunning;
  if (isRunning) write(find("note"), "writing …");
}

function showSettings() {
  find("system").value = open.settings.system ?? "";
  for (const name of NUMBERS) find("composer").elements[name].value = open.settings[name] ?? "";
  find("composer").elements.thinks.checked = open.settings.thinks !== false;
}

function readSettings() {
  const {elements} = find("composer");
  open.settings = {system: find("system").value.trim(), thinks: elements.thinks.checked};
  for (const name of NUMBERS) {
    if (elements[name].value !== "") open.settings[name] = Number(elements[name].value);
  }
  conversations.save();
}

function askForKey() {
  find("gate").hidden = false;
  write(find("gate-note"), getKey() ? "The server does not know this key." : "");
  find("gate-key").focus();
}

/** Shows the models and the state of the server, and looks again from time to time. */
async function look() {
  if (document.hidden) return;
  try {
    const reply = await call("health").catch(error => {
      if (error.status === 503) return null;
      throw error;
    });
    set(find("status"), "data-state", reply ? "ready" : "starting");
    write(find("status"), reply ? "ready" : "not ready");
    if (!find("model").options.length) {
      const {data} = await getJson("v1/models");
      find("model").replaceChildren(...data.map(({id}) => make("option", {value: id}, id)));
      find("gate").hidden = true;
    }
  } catch (error) {
    set(find("status"), "data-state", "lost");
    write(find("status"), error.status === 401 ? "a key is needed" : "no connection");
    if (error.status === 401 && find("gate").hidden) askForKey();
  }
}

find("composer").addEventListener("submit", event => {
  event.preventDefault();
  const text = find("text").value.trim();
  if (!text || running) return;
  find("text").value = "";
  open.messages.push({role: "user", content: text});
  answerFrom(open.messages.length);
});
find("text").addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  find("composer").requestSubmit();
});
find("settings").addEventListener("change", readSettings);
find("stop").addEventListener("click", () => running?.abort());
find("new").addEventListener("click", () => openConversation(open.messages.length ? conversations.create() : open));
find("details-close").addEventListener("click", closeDetails);
find("menu").addEventListener("click", () => {
  const isOpen = !find("side").hasAttribute("data-open");
  set(find("side"), "data-open", isOpen);
  set(find("menu"), "aria-expanded", String(isOpen));
});
find("gate-form").addEventListener("submit", event => {
  event.preventDefault();
  setKey(find("gate-key").value.trim());
  find("gate").hidden = true;
  look();
});

showAll();
look();
setInterval(look, STATUS_MS);
document.addEventListener("visibilitychange", look);
