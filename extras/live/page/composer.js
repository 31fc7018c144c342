// The field for a message, and the images and text files that go with it.

import {find, make, set} from "./dom.js";
import {icon, iconButton} from "./icons.js";
import {isImage, makePicture, whyRefused} from "./images.js";

const MAX_BYTES = 1e6, MOST_FILES = 8;

export class Composer {
  limits = null; // of images, if the model reads any

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

  /** Sets the limits of images; null for a model that reads text only. */
  setLimits(limits) {
    this.limits = limits;
    for (const name of ["aria-label", "title"]) set(find("attach"), name, limits ? "Attach images and text files" : "Attach text files");
  }

  /** Adds images and files of text; others are refused with a reason. */
  async attach(files) {
    const refused = [];
    for (const file of files) {
      const wrong = this.whyNotAttached(file), read = wrong ? null : await (isImage(file) ? readImage : readText)(file);
      if (read) this.files.push({name: file.name, ...read});
      else refused.push(`${file.name}: ${wrong || (isImage(file) ? "it cannot be read" : "not a text file")}`);
    }
    this.say(refused.join("; "), true);
    this.show();
  }

  whyNotAttached(file) {
    const ofKind = this.files.filter(({image}) => Boolean(image) === isImage(file)).length, most = isImage(file) ? this.limits?.max_images : MOST_FILES;
    if (ofKind >= most) return `only ${most} ${isImage(file) ? "images" : "files"} go with a message`;
    return isImage(file) ? whyRefused(file, this.limits) : file.size > MAX_BYTES ? "larger than 1 MB" : "";
  }

  show() {
    find("files").replaceChildren(...this.files.map(file => make("li", {}, file.image ? makePicture(file, "") : icon("FileText"), make("span", {}, file.name), iconButton("X", `Remove ${file.name}`, () => {
      this.files = this.files.filter(other => other !== file);
      this.show();
    }))));
  }
}

/** Returns a copy of an image, so that it can be sent again after its file has gone; null if it cannot be read. */
async function readImage(file) {
  return file.arrayBuffer().then(data => ({image: new Blob([data], {type: file.type})}), () => null);
}

/** Returns the text of a file, null for one that is no text in UTF-8. */
async function readText(file) {
  try {
    const text = new TextDecoder("utf-8", {fatal: true}).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : {text};
  } catch {
    return null;
  }
}
