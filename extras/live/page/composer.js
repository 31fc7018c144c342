// The field for a message and the text files that go with it.

import {find, make} from "./dom.js";
import {icon, iconButton} from "./icons.js";

const MAX_BYTES = 1e6, MOST_FILES = 8;

export class Composer {
  /** `onSend` gets the text and the files; `say` shows people what is wrong. */
  constructor(onSend, say) {
    Object.assign(this, {files: [], say, field: find("text")});
    find("composer").addEventListener("submit", event => {
      event.preventDefault();
      const text = this.field.value.trim(), {files} = this;
      if ((!text && !files.length) || find("send").disabled) return;
      this.set("", []);
      onSend(text, files);
    });
    this.field.addEventListener("keydown", event => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      find("composer").requestSubmit();
    });
    find("attach").addEventListener("click", () => find("file").click());
    find("file").addEventListener("change", async () => {
      await this.attach(find("file").files);
      find("file").value = "";
    });
    for (const [place, kind, filesOf] of [[find("text"), "paste", event => event.clipboardData], [find("main"), "drop", event => event.dataTransfer]]) {
      place.addEventListener(kind, event => {
        if (!filesOf(event)?.files.length) return;
        event.preventDefault();
        this.attach(filesOf(event).files);
      });
    }
    find("main").addEventListener("dragover", event => event.preventDefault());
  }

  set(text, files = []) {
    this.field.value = text;
    this.files = files;
    this.show();
    this.field.focus();
  }

  /** Adds files of text; others are refused with a reason. */
  async attach(files) {
    const refused = [];
    for (const file of files) {
      const wrong = this.files.length >= MOST_FILES ? `only ${MOST_FILES} files go with a message` : file.size > MAX_BYTES ? "larger than 1 MB" : "";
      const text = wrong ? "" : await readText(file);
      if (text === null || wrong) refused.push(`${file.name}: ${wrong || "not a text file"}`);
      else this.files.push({name: file.name, text});
    }
    this.say(refused.join("; "), true);
    this.show();
  }

  show() {
    find("files").replaceChildren(...this.files.map(file => make("li", {}, icon("FileText"), file.name, iconButton("X", `Remove ${file.name}`, () => {
      this.files = this.files.filter(other => other !== file);
      this.show();
    }))));
  }
}

/** Returns the text of a file, null for one that is no text in UTF-8. */
async function readText(file) {
  try {
    const text = new TextDecoder("utf-8", {fatal: true}).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}
