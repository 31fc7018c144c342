// The messages on the screen. A message that is being written changes in place.

import {speedOf} from "./answer.js";
import {branch, versions} from "./conversations.js";
import {find, keep, make, write} from "./dom.js";
import {count, seconds} from "./format.js";
import {GrowingText} from "./growing.js";
import {copy, icon, iconButton} from "./icons.js";
import {makePicture} from "./images.js";
import {nameOf} from "./models.js";
import {makeCalls} from "./tools.js";

const MOST_SPOKEN = 20, NEAR_PX = 60;

export class Messages {
  /** `acts` has what the buttons do: `edit`, `regenerate`, `resume`, `remove`, `show` and `explain`, each with the message, and `send`. */
  constructor(acts) {
    Object.assign(this, {acts, views: new Map(), items: new Map(), isAtEnd: true});
    this.scroll = find("scroll");
    this.scroll.addEventListener("scroll", () => this.look(), {passive: true});
    find("to-end").addEventListener("click", () => this.toEnd());
  }

  /** Shows a conversation; `running` is the answer that is being written. Messages on the screen stay as they are. */
  show(conversation, running) {
    const shown = branch(conversation), byId = new Map(shown.map(message => [message.id, message]));
    keep(find("messages"), this.items, [...byId.keys()], id => this.create(byId.get(id)));
    for (const id of this.views.keys()) if (!byId.has(id)) this.views.delete(id);
    shown.forEach((message, place) => this.settle(message, versions(conversation, message), place === shown.length - 1, message === running));
    this.look();
  }

  /** Shows what has changed of an answer, if it is on the screen; `wait` is what it waits for. */
  update(answer, wait) {
    if (!this.items.has(answer.id)) return;
    fill(this.views.get(answer.id), answer, false);
    write(this.views.get(answer.id).wait, wait);
    if (this.isAtEnd) this.toEnd();
  }

  toEnd() {
    this.scroll.scrollTop = this.scroll.scrollHeight;
    this.look();
  }

  look() {
    const {scrollHeight, scrollTop, clientHeight} = this.scroll;
    this.isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    find("to-end").hidden = this.isAtEnd;
  }

  /** Shows a form in place of a message; returns what puts the message back. */
  replace({id}, form) {
    const item = this.items.get(id), kept = [...item.childNodes];
    item.replaceChildren(form);
    return () => item.replaceChildren(...kept);
  }

  create({id, role, name, model, content, files = []}) {
    const view = {
      thought: make("details", {class: "thought", hidden: ""}, make("summary", {}), make("div", {class: "text"})),
      text: make("div", {class: "text"}), calls: make("div"), wait: make("p", {class: "wait dim"}), error: make("p", {class: "error", role: "alert"}),
      actions: make("div", {class: "message-actions", role: "group", "aria-label": "Actions"}),
    };
    view.thinking = new GrowingText(view.thought.lastChild);
    if (role === "assistant") view.growing = new GrowingText(view.text);
    else view.text.append(content);
    this.views.set(id, view);
    return make("li", {class: role}, make("p", {class: "who"}, role === "user" ? "You" : name ? `Result of ${name}` : nameOf(model ?? "Model")),
      ...files.map(file => file.image ? makePicture(file) : make("details", {class: "file"}, make("summary", {}, icon("FileText"), file.name), make("pre", {tabindex: 0}, file.text))),
      view.thought, view.text, view.calls, view.wait, view.error, view.actions);
  }

  settle(message, all, isLast, isRunning) {
    const view = this.views.get(message.id), state = [isLast, isRunning, message.error, ...all.map(({id}) => id)].join();
    if (view.state === state) return;
    view.state = state;
    write(view.error, message.error ?? "");
    write(view.wait, "");
    if (view.growing) {
      fill(view, message, !isRunning);
      view.growing.onBlock = isRunning ? speakAloud : () => {};
      view.calls.replaceChildren(...makeCalls(message.calls ?? [], isLast && !isRunning && this.acts.send));
    }
    view.actions.replaceChildren(...isRunning ? [] : this.makeActions(message, all, isLast));
  }

  makeActions(message, all, isLast) {
    const {acts} = this, {content, calls, usage, error} = message, isAnswer = message.role === "assistant", place = all.indexOf(message);
    const step = (name, label, other) => iconButton(name, label, () => acts.show(other), {disabled: other ? null : ""});
    const copied = iconButton("Copy", "Copy", () => copy(copied, content));
    return [
      all.length > 1 && make("span", {class: "versions"}, step("ChevronLeft", "Previous version", all[place - 1]),
        `${place + 1}/${all.length}`, step("ChevronRight", "Next version", all[place + 1])),
      content && copied,
      iconButton("Pencil", "Edit", () => acts.edit(message)),
      isAnswer && iconButton("RefreshCw", error ? "Try again" : "Regenerate", () => acts.regenerate(message)),
      isAnswer && isLast && content && !calls?.length && iconButton("FastForward", "Continue", () => acts.resume(message)),
      iconButton("Trash2", "Delete", () => acts.remove(message)),
      usage && iconButton("Info", "How it was made", () => acts.explain(message)),
      usage && make("span", {class: "dim"}, [`${count(usage.completion_tokens)} tokens`, speedOf(message)].filter(Boolean).join(", ")),
    ].filter(Boolean);
  }
}

/** Shows the text of an answer; reasoning is open until the answer itself begins. */
function fill(view, {content, reasoning, thoughtMs, calls}, isWhole) {
  if (reasoning && !view.isFolded) {
    const isThinking = !isWhole && !content;
    view.thought.hidden = false;
    view.thought.open = !content;
    view.thinking.write(reasoning, !isThinking);
    write(view.thought.firstChild, isThinking ? "Reasoning …" : thoughtMs ? `Reasoned for ${seconds(thoughtMs / 1000)}` : "Reasoning");
    view.isFolded = !isThinking;
  }
  view.growing.write(content, isWhole);
  if (!isWhole && calls.length) view.calls.replaceChildren(...makeCalls(calls));
}

/** Makes screen readers read blocks of an answer. */
function speakAloud(nodes) {
  const spoken = find("spoken"), text = nodes.map(({textContent}) => textContent).join(" ").trim();
  if (text) spoken.append(make("p", {}, text));
  while (spoken.children.length > MOST_SPOKEN) spoken.firstChild.remove();
}
