// The conversations that this browser keeps, and nothing else does. Each is a tree of messages, of which one branch is shown.

import {imagesOf} from "./images.js";
import {store} from "./vendor/text.js";

const MOST = 500, MOST_BYTES = 500e6;

export const newId = () => crypto.getRandomValues(new Uint32Array(2)).join("-");

export class Conversations {
  all = []; // the latest first
  sizes = new Map(); // in bytes, by id
  database = store.createStore("sluice", "conversations");

  /** Reads what is kept; a browser that keeps nothing for this page begins with nothing. */
  async load() {
    const kept = await store.values(this.database).catch(() => []);
    for (const conversation of kept) this.sizes.set(conversation.id, sizeOf(conversation));
    this.all = kept.sort((one, other) => other.changed - one.changed);
  }

  /** Returns a new conversation with the settings of the latest one. */
  create(settings = this.all[0]?.settings ?? {}) {
    const conversation = {id: newId(), title: "", settings: {...settings}, messages: [], leaf: null, changed: Date.now()};
    this.all.unshift(conversation);
    return conversation;
  }

  async remove(conversation) {
    this.all = this.all.filter(other => other !== conversation);
    this.sizes.delete(conversation.id);
    await store.del(conversation.id, this.database).catch(() => {});
  }

  /** Writes a conversation, if it has messages; the oldest ones go if there are too many, or the browser has no room. */
  async save(conversation) {
    if (!this.all.includes(conversation)) return;
    if (!conversation.messages.length) return store.del(conversation.id, this.database).catch(() => {});
    conversation.changed = Date.now();
    this.all.sort((one, other) => other.changed - one.changed);
    this.sizes.set(conversation.id, sizeOf(conversation));
    const size = () => [...this.sizes.values()].reduce((sum, size) => sum + size, 0);
    while (this.all.length > 1 && (this.all.length > MOST || size() > MOST_BYTES)) await this.remove(this.all.at(-1));
    try {
      await store.set(conversation.id, conversation, this.database);
    } catch (error) {
      if (error.name === "QuotaExceededError" && this.all.at(-1) !== conversation) return this.remove(this.all.at(-1)).then(() => this.save(conversation));
    }
  }

  /** Returns the conversations with this text, each with the first message that has it; those by their title have none. */
  search(text) {
    const sought = text.toLowerCase(), has = value => value.toLowerCase().includes(sought);
    return this.all.map(conversation => ({conversation, message: conversation.messages.find(({content}) => has(content))}))
      .filter(({conversation, message}) => message || has(conversation.title));
  }
}

const sizeOf = conversation => imagesOf(conversation.messages).reduce((sum, {size}) => sum + size, JSON.stringify(conversation).length);

/** Adds a message after `parent`, by default the last one that is shown, and shows it. */
export function add(conversation, message, parent = conversation.leaf) {
  Object.assign(message, {id: message.id ?? newId(), parent});
  conversation.messages.push(message);
  conversation.leaf = message.id;
  return message;
}

/** Returns the messages that are shown, in order. */
export function branch({messages, leaf}) {
  const byId = new Map(messages.map(message => [message.id, message])), shown = [];
  for (let message = byId.get(leaf); message; message = byId.get(message.parent)) shown.unshift(message);
  return shown;
}

/** Returns the messages in the place of this one, which is among them. */
export const versions = ({messages}, {parent}) => messages.filter(other => other.parent === parent);

/** Shows the branch with `message`, as far as its latest answers go. */
export function show(conversation, {id}) {
  conversation.leaf = id;
  const next = conversation.messages.findLast(({parent}) => parent === id);
  if (next) show(conversation, next);
}

/** Removes a message and all that follows it; another version of it is shown, if there is one. */
export function cut(conversation, message) {
  const gone = new Set([message.id]);
  for (const {id, parent} of conversation.messages) if (gone.has(parent)) gone.add(id); // a message is after its parent
  conversation.messages = conversation.messages.filter(({id}) => !gone.has(id));
  const other = versions(conversation, message).at(-1);
  if (other) show(conversation, other);
  else conversation.leaf = message.parent;
}
