// The list of conversations: it is searched, exported, and filled from files.

import {branch, show} from "./conversations.js";
import {find, make, set, write} from "./dom.js";
import {iconButton} from "./icons.js";
import {asJson, download, readFile} from "./transfer.js";

const MOST_FOUND = 100, TYPING_MS = 150;

export class Sidebar {
  /** `acts`: `open` and `remove` a conversation, `reveal` a message, `say` something to people. */
  constructor(conversations, acts) {
    Object.assign(this, {conversations, acts});
    find("search").addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.show(this.chosen), TYPING_MS);
    });
    find("menu").addEventListener("click", () => this.toggle(!find("side").hasAttribute("data-open")));
    find("export-all").addEventListener("click", async () => download("conversations.json", await asJson(conversations.all.filter(({leaf}) => leaf)), "application/json"));
    find("import").addEventListener("click", () => find("import-file").click());
    find("import-file").addEventListener("change", async ({target}) => {
      await this.import(target.files[0]);
      target.value = "";
    });
  }

  /** On a narrow screen the list lies over the messages. */
  toggle(isOpen) {
    set(find("side"), "data-open", isOpen);
    set(find("menu"), "aria-expanded", String(isOpen));
  }

  show(chosen) {
    this.chosen = chosen;
    const text = find("search").value.trim(), {all} = this.conversations;
    const found = (text ? this.conversations.search(text) : all.map(conversation => ({conversation}))).filter(({conversation}) => conversation.leaf);
    find("list").replaceChildren(...found.slice(0, MOST_FOUND).map(({conversation, message}) => this.makeRow(conversation, message, text)));
    const rest = found.length - MOST_FOUND;
    write(find("list-note"), rest > 0 ? `${rest} more: search for them` : text && !found.length ? "Nothing found" : "");
  }

  makeRow(conversation, message, text) {
    const {title} = conversation, at = message?.content.toLowerCase().indexOf(text.toLowerCase());
    const choose = make("button", {type: "button", class: "open", "aria-current": conversation === this.chosen ? "true" : null}, title,
      ...message ? [make("small", {}, message.content.slice(Math.max(0, at - 20), at + 60))] : []);
    choose.addEventListener("click", () => {
      if (message && !branch(conversation).includes(message)) show(conversation, message);
      this.acts.open(conversation);
      if (message) this.acts.reveal(message);
    });
    return make("li", {}, choose, iconButton("Trash2", `Delete ${title}`, () => this.acts.remove(conversation), {class: "icon delete"}));
  }

  async import(file) {
    try {
      const read = await readFile(file);
      for (const conversation of read) {
        this.conversations.all.unshift(conversation);
        await this.conversations.save(conversation);
      }
      if (read.length) this.acts.open(read[0]);
      this.acts.say(`${read.length} imported`);
    } catch (error) {
      this.acts.say(`${file.name}: ${error.message}`, true);
    }
  }
}
