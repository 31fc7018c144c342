// The chat: puts its parts together, and keeps what is shown equal to the conversation that is open.

import {ask, summarize} from "./answer.js";
import {call, getKey, setKey, setModel} from "./api.js";
import {Conversations} from "./conversations.js";
import {find, make, set, write} from "./dom.js";
import {render} from "./markdown.js";
import {Menu} from "./menu.js";
import {canChat, describe, Models} from "./models.js";
import {TokenView} from "./tokens.js";
import {EXAMPLE, makeCalls, readTools} from "./tools.js";
import {loadWaterfall} from "./waterfall.js";

const MIN_DRAW_MS = 60;

const conversations = new Conversations();
const tokens = new TokenView();
const known = new Map(); // the tokens of answers of this visit, by the id of their request
let open = conversations.all[0] ?? conversations.create();
let running = null; // what stops the answer that is being written
let waiting = null; // the answer of which nothing has arrived: its model may still load
const models = new Models(showServer, () => waiting || menu.isOpen);
const menu = new Menu(models, name => {
  open.settings.model = name;
  conversations.save();
  showModels();
});
const modelOf = conversation => models.choose(conversation.settings.model, canChat);

function showAll() {
  showList();
  showSettings();
  showModels();
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
  find("details").hidden = true;
  showAll();
  find("text").focus();
}

/** Returns the item of a message; `place` is its index. */
function makeMessage(message, place) {
  const text = make("div", {class: "text"});
  const item = make("li", {class: message.role}, make("p", {class: "who"}, message.role === "user" ? "You" : message.name ? `Result of ${message.name}` : message.model ?? "Model"));
  const actions = make("div", {class: "message-actions"});
  if (message.role !== "assistant") {
    text.append(message.content);
    addAction(actions, "Edit", () => edit(item, place));
  } else {
    if (message.reasoning) {
      const isOpen = !message.content && !message.reason;
      item.append(make("details", {class: "thought", open: isOpen ? "" : null}, make("summary", {}, "Reasoning"), make("div", {class: "text"}, message.reasoning)));
    }
    text.append(...render(message.content));
    addAction(actions, "Copy", () => navigator.clipboard.writeText(message.content));
    addAction(actions, message.error ? "Try again" : "Regenerate", () => answerFrom(place));
    if (message.usage) addAction(actions, "How it was made", () => showDetails(message));
    if (message.usage) actions.append(make("span", {class: "dim"}, summarize(message)));
  }
  const send = !running && place === open.messages.length - 1 && (results => answerFrom(open.messages.push(...results)));
  const notes = [["wait dim", message === waiting && waitText()], ["error", message.error]].filter(([, note]) => note);
  item.append(text, ...makeCalls(message.calls ?? [], send), ...notes.map(([kind, note]) => make("p", {class: kind}, note)), actions);
  return item;
}

/** What the answer of a model that is not loaded waits for. */
function waitText() {
  const model = models.find(waiting.model);
  if (!model?.status || model.status.value === "loaded") return "";
  return `${model.status.value === "loading" ? describe(model) : "waiting for the model"} …`;
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
    open.messages[place].content = area.value;
    const next = open.messages.findIndex(({role}, index) => index > place && role !== "tool");
    answerFrom(next < 0 ? open.messages.length : next);
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
  const asked = [...conversation.messages], model = conversation.settings.model = modelOf(conversation)?.id;
  const answer = {role: "assistant", content: "", reasoning: "", calls: [], id, model};
  conversation.messages.push(answer);
  waiting = answer;
  showAll();
  setRunning(true);
  if (waitText()) models.look();
  let nextDrawMs = 0;
  const draw = part => {
    if (waiting === answer) waiting = null;
    Object.assign(answer, part, {tokens: undefined});
    known.set(id, part.tokens);
    const begunMs = performance.now();
    if (conversation !== open || begunMs < nextDrawMs) return;
    redraw(answer);
    nextDrawMs = performance.now() + Math.max(MIN_DRAW_MS, 4 * (performance.now() - begunMs)); // a long answer is redrawn less often
  };
  try {
    draw(await ask({...bodyOf(conversation.settings, asked), model, id, signal: control.signal}, draw));
    write(find("note"), "");
  } catch (error) {
    if (error.name !== "AbortError") answer.error = error.message + (error.retryS ? ` (try again in ${error.retryS} s)` : "");
    answer.reason ||= "stop";
    write(find("note"), error.name === "AbortError" ? "stopped" : "");
    if (error.status === 401) askForKey();
  }
  if (waiting === answer) waiting = null;
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

async function showDetails(message) {
  find("details").hidden = false;
  tokens.clear();
  for (const token of known.get(message.id) ?? []) tokens.add(token, token.top_logprobs);
  tokens.finish();
  if (!known.has(message.id)) tokens.addText("The probabilities are not kept after a visit.");
  find("timeline").replaceChildren(await loadWaterfall(message.id, message.model).catch(() => make("p", {class: "dim"}, "The server no longer knows this request.")));
}

function setRunning(isRunning) {
  find("send").disabled = isRunning;
  find("stop").disabled = !isRunning;
  if (isRunning) write(find("note"), waitText() || "writing …");
}

function showSettings() {
  for (const field of find("composer").querySelectorAll("[name]")) {
    if (field.type === "checkbox") field.checked = open.settings[field.name] !== false;
    else field.value = open.settings[field.name] ?? "";
  }
  showTools();
}

/** Shows what is offered to the model, or what is wrong with it. */
function showTools() {
  let text = "none", isWrong = false;
  try {
    text = readTools(find("tools-text").value)?.map(({function: {name}}) => name).join(", ") ?? text;
  } catch (error) {
    [text, isWrong] = [error.message, true];
  }
  write(find("tools-note"), text);
  set(find("tools-note"), "class", isWrong ? "error" : "dim");
  set(find("tools-text"), "aria-invalid", isWrong);
}

function readSettings() {
  for (const {name, type, value, checked} of find("composer").querySelectorAll("[name]")) {
    open.settings[name] = type === "checkbox" ? checked : type === "number" && value ? Number(value) : value || undefined;
  }
  conversations.save();
  showTools();
}

/** Returns the fields of a request, by the settings of a conversation. Throws an `Error` if its tools are wrong. */
function bodyOf({model, system, tools, thinks, ...numbers}, messages) {
  const first = system?.trim() ? [{role: "system", content: system}] : [];
  return {sampling_defaults: "chat", ...numbers, messages: [...first, ...messages], tools: readTools(tools), reasoning_effort: thinks === false ? "none" : undefined};
}

function askForKey() {
  find("gate").hidden = false;
  write(find("gate-note"), getKey() ? "The server does not know this key." : "");
  find("gate-key").focus();
}

function showModels() {
  const model = modelOf(open);
  menu.show(model);
  setModel(models.hasStates ? model?.id : "");
  set(find("pipeline"), "href", models.hasStates && model ? `pipeline?model=${encodeURIComponent(model.id)}` : "pipeline");
  if (waiting && (document.querySelector(".wait")?.textContent ?? "") !== waitText()) redraw(waiting);
}

/** Shows the models and the state of the server, of which `failure` is known. */
async function showServer(failure) {
  showModels();
  const {status = 200} = failure ?? (models.hasStates ? {} : await call("health").catch(error => error));
  const [state, text] = {200: ["ready", "ready"], 503: ["starting", "not ready"], 401: ["lost", "a key is needed"]}[status] ?? ["lost", "no connection"];
  set(find("status"), "data-state", state);
  write(find("status"), text);
  if (status === 401 && find("gate").hidden) askForKey();
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
for (const part of ["settings", "tools"]) find(part).addEventListener("change", readSettings);
find("stop").addEventListener("click", () => running?.abort());
find("new").addEventListener("click", () => openConversation(open.messages.length ? conversations.create() : open));
find("details-close").addEventListener("click", () => { find("details").hidden = true; });
find("menu").addEventListener("click", () => {
  const isOpen = !find("side").hasAttribute("data-open");
  set(find("side"), "data-open", isOpen);
  set(find("menu"), "aria-expanded", String(isOpen));
});
find("gate-form").addEventListener("submit", event => {
  event.preventDefault();
  setKey(find("gate-key").value.trim());
  find("gate").hidden = true;
  models.look();
});
find("tools-text").addEventListener("input", showTools);
find("tools-example").addEventListener("click", () => {
  find("tools-text").value = EXAMPLE;
  readSettings();
});

showAll();
models.look();
