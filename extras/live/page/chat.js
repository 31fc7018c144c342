// The chat: puts its parts together, and keeps what is shown equal to the conversation that is open.

import {ask, speedOf, summarize} from "./answer.js";
import {call, getKey, setKey, setModel} from "./api.js";
import {Composer} from "./composer.js";
import {add, branch, Conversations, cut, newId, show} from "./conversations.js";
import {find, make, set, write} from "./dom.js";
import {count, seconds} from "./format.js";
import {fillIcons} from "./icons.js";
import {Menu} from "./menu.js";
import {Messages} from "./messages.js";
import {canChat, describe, Models} from "./models.js";
import {bodyOf, Settings} from "./settings.js";
import {Sidebar} from "./sidebar.js";
import {TokenView} from "./tokens.js";
import {asJson, asMarkdown, download, fileNameOf} from "./transfer.js";
import {loadWaterfall} from "./waterfall.js";
import {readFacts, showWelcome} from "./welcome.js";

const MIN_DRAW_MS = 60, MOST_KNOWN = 20;

fillIcons(document);
const conversations = new Conversations();
const tokens = new TokenView();
const known = new Map(); // the tokens of the latest answers of this visit, by the id of their request
let open = conversations.create();
let running = null; // the answer that is being written, with what stops it
let facts = {defaults: {}}; // of the model that is chosen
const models = new Models(showServer, () => running?.isWaiting || menu.isOpen);
const menu = new Menu(models, name => {
  open.settings.model = name;
  conversations.save(open);
  showModels();
});
const settings = new Settings(changed => {
  open.settings = {...changed, model: open.settings.model};
  conversations.save(open);
});
const composer = new Composer((text, files) => answer(add(open, {role: "user", content: text, files: files.length ? files : undefined})), say);
const messages = new Messages({
  edit, explain, remove,
  regenerate: message => answer(open.messages.find(({id}) => id === message.parent)),
  resume: message => answer(open.messages.find(({id}) => id === message.parent), message),
  show: message => {
    show(open, message);
    conversations.save(open);
    showMessages();
  },
  send: results => answer(results.map(result => add(open, result)).at(-1)),
});
const sidebar = new Sidebar(conversations, {open: openConversation, say, remove: removeConversation, reveal: message => messages.items.get(message.id).scrollIntoView()});
const modelOf = conversation => models.choose(conversation.settings.model, canChat);

/** Shows a sentence below the message; `undo` is offered with it. */
function say(text, isWrong = false, undo = null) {
  find("note").replaceChildren(text, ...undo ? [make("button", {type: "button"}, "Undo")] : []);
  set(find("note"), "class", isWrong ? "error" : "dim");
  find("note").querySelector("button")?.addEventListener("click", () => {
    undo();
    say("");
  });
}

function openConversation(conversation) {
  running?.control.abort();
  open = conversation;
  sidebar.toggle(false);
  if (!find("details").hidden) openPanel(null);
  settings.show(open.settings);
  showModels();
  sidebar.show(open);
  showMessages();
  messages.toEnd();
  composer.field.focus();
}

function showMessages() {
  messages.show(open, running?.answer);
  find("welcome").hidden = open.leaf !== null;
  find("scroll").hidden = open.leaf === null;
  showUsed(running?.answer ?? branch(open).findLast(({usage}) => usage));
}

/** Shows how much of the context the conversation takes, and how fast it grows. */
function showUsed(answer) {
  const {usage} = answer ?? {}, used = usage && usage.prompt_tokens + usage.completion_tokens;
  write(find("used"), [used && `${count(used)}${facts.context ? ` of ${count(facts.context)}` : ""} tokens`, answer && speedOf(answer)].filter(Boolean).join(" · "));
  set(find("used"), "data-full", Boolean(used > 0.9 * facts.context));
}

function removeConversation(conversation) {
  conversations.remove(conversation);
  openConversation(conversation === open ? conversations.all[0] ?? conversations.create() : open);
  say("Conversation deleted.", false, () => {
    conversations.all.unshift(conversation);
    conversations.save(conversation);
    openConversation(conversation);
  });
}

/** Replaces a message by a form. A question that is sent begins another branch; an answer that is saved is another version. */
function edit(message) {
  const isAnswer = message.role === "assistant", area = make("textarea", {"aria-label": "Edited message"});
  area.value = message.content;
  const cancel = make("button", {type: "button"}, "Cancel");
  const form = make("form", {class: "editing"}, area, make("div", {class: "actions"}, make("button", {class: "main"}, isAnswer ? "Save" : "Send"), cancel));
  form.addEventListener("submit", event => {
    event.preventDefault();
    if (!area.value.trim() && !message.files?.length) return;
    close();
    const {id, parent, usage, request, ...kept} = message, shown = branch(open), after = shown.slice(shown.indexOf(message) + 1);
    let last = add(open, {...kept, content: area.value}, parent);
    while (after[0]?.role === "tool") last = add(open, {...after.shift(), id: undefined});
    if (!isAnswer) return answer(last);
    conversations.save(open);
    showMessages();
  });
  form.addEventListener("keydown", ({key}) => { if (key === "Escape") cancel.click(); });
  const close = messages.replace(message, form);
  cancel.addEventListener("click", close);
  area.focus();
}

function remove(message) {
  const conversation = open, {messages: all, leaf} = conversation;
  if (running) running.control.abort();
  cut(conversation, message);
  conversations.save(conversation);
  showMessages();
  say("Message deleted.", false, () => {
    Object.assign(conversation, {messages: all, leaf});
    conversations.save(conversation);
    openConversation(conversation);
  });
}

/** Asks for an answer to `question`, which gets another version if it has one; `begun` is an answer to continue. */
async function answer(question, begun) {
  running?.control.abort();
  const conversation = open, request = `chat-${newId()}`, model = conversation.settings.model = modelOf(conversation)?.id;
  const asked = branch({...conversation, leaf: question.id});
  conversation.title ||= (asked[0].content || asked[0].files[0].name).slice(0, 60);
  const written = begun ?? add(conversation, {role: "assistant", content: "", reasoning: "", calls: [], model}, question.id);
  delete Object.assign(written, {request}).error;
  const control = new AbortController(), run = running = {control, answer: written, isWaiting: true};
  setRunning(true);
  sidebar.show(open);
  showMessages();
  messages.toEnd();
  if (waitText(run)) models.look();
  let nextDrawMs = 0;
  const draw = ({progress, tokens: seen, id, ...part}) => {
    run.isWaiting = part.firstMs === undefined;
    run.progress = progress;
    Object.assign(written, part);
    known.set(request, seen);
    const begunMs = performance.now();
    if (conversation !== open || begunMs < nextDrawMs) return;
    messages.update(written, waitText(run));
    showUsed(written);
    nextDrawMs = performance.now() + Math.max(MIN_DRAW_MS, 4 * (performance.now() - begunMs)); // most of the time is left for others
  };
  try {
    draw(await ask({...bodyOf(conversation.settings, asked), model, id: request, signal: control.signal, begun, isText: facts.isChat === false}, draw));
    say("");
  } catch (error) {
    if (error.name !== "AbortError") written.error = error.message + (error.retryS ? ` (try again in ${error.retryS} s)` : "");
    say(error.name === "AbortError" ? "stopped" : "");
  }
  for (const id of [...known.keys()].slice(0, -MOST_KNOWN)) known.delete(id);
  if (running === run) running = null;
  if (conversation === open) showMessages();
  await conversations.save(conversation);
  if (!running) setRunning(false);
  sidebar.show(open);
}

/** What an answer waits for: its model, or its turn. */
function waitText({isWaiting, progress, answer: {model: name}}) {
  if (!isWaiting) return "";
  const model = models.find(name);
  if (model?.status && model.status.value !== "loaded") return `${model.status.value === "loading" ? describe(model) : "waiting for the model"} …`;
  if (!progress) return "";
  const {position, tokens_ahead: tokens, expected_s: wait} = progress;
  return [`place ${position} in the queue`, tokens && `${count(tokens)} tokens before it`, wait && `about ${seconds(wait)}`].filter(Boolean).join(", ") + " …";
}

async function explain(message) {
  const id = message.request ?? message.id;
  openPanel("details");
  write(find("details-summary"), summarize(message));
  tokens.clear();
  for (const token of known.get(id) ?? []) tokens.add(token, token.top_logprobs);
  tokens.finish();
  if (!known.has(id)) tokens.addText("The probabilities are kept for the latest answers of a visit.");
  find("timeline").replaceChildren(await loadWaterfall(id, message.model).catch(() => make("p", {class: "dim"}, "The server no longer knows this request.")));
}

function setRunning(isRunning) {
  find("send").hidden = find("send").disabled = isRunning;
  find("stop").hidden = find("stop").disabled = !isRunning;
  if (isRunning) say("writing …");
}

/** Opens one panel in place of another; `null` closes it. */
function openPanel(id) {
  for (const panel of document.querySelectorAll("aside")) panel.hidden = panel.id !== id;
  set(find("settings-open"), "aria-expanded", String(id === "settings"));
  if (id) find(id).querySelector(".close").focus();
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
  if (running?.isWaiting) messages.update(running.answer, waitText(running));
  if (model) showFacts(model);
}

/** Reads what is known of the model, if it is another one or has been loaded since. */
async function showFacts(model) {
  const isLoaded = !model.status || model.status.value === "loaded", key = `${model.id} ${isLoaded}`;
  if (facts.key === key) return;
  facts = {defaults: {}, key};
  const read = await readFacts(model, isLoaded);
  if (facts.key !== key) return;
  facts = {...read, key};
  settings.showDefaults(facts.defaults);
  composer.setLimits(facts.images);
  set(composer.field, "placeholder", facts.isChat ? "Message" : "The beginning of a text");
  showWelcome(model, facts, ({text, tools}) => {
    if (tools) Object.assign(open.settings, {tools});
    settings.show(open.settings);
    answer(add(open, {role: "user", content: text}));
  });
  showUsed(running?.answer ?? branch(open).findLast(({usage}) => usage));
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

const press = (id, act) => find(id).addEventListener("click", act);
const newConversation = () => openConversation(open.messages.length ? conversations.create() : open);
press("stop", () => running?.control.abort());
press("new", newConversation);
press("settings-open", () => openPanel(find("settings").hidden ? "settings" : null));
press("export-json", async () => download(`${fileNameOf(open)}.json`, await asJson([open]), "application/json"));
press("export-markdown", async () => download(`${fileNameOf(open)}.md`, await asMarkdown(open), "text/markdown"));
for (const panel of document.querySelectorAll("aside")) {
  panel.querySelector(".close").addEventListener("click", () => {
    openPanel(null);
    find(panel.id === "settings" ? "settings-open" : "text").focus();
  });
}
find("gate-form").addEventListener("submit", event => {
  event.preventDefault();
  setKey(find("gate-key").value.trim());
  find("gate").hidden = true;
  models.look();
});
document.addEventListener("keydown", event => {
  if (event.key === "Escape" && !document.querySelector(":popover-open")) {
    running?.control.abort();
    sidebar.toggle(false);
  }
  if (event.key === "O" && event.shiftKey && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    newConversation();
  }
});

await conversations.load().catch(error => console.info("Earlier conversations cannot be read.", error));
openConversation(conversations.all[0] ?? conversations.create());
models.look();
