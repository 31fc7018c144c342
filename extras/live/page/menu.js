// The menu of models: each with its state and size, a choice for the chat, and a button that loads or unloads it.

import {find, keep, make, set, write} from "./dom.js";
import {bytes} from "./format.js";
import {canChat, describe, nameOf, stateOf} from "./models.js";

export class Menu {
  /** `choose` is called with the name that the user chooses. */
  constructor(models, choose) {
    Object.assign(this, {models, rows: new Map(), form: find("models")});
    this.form.addEventListener("change", event => choose(event.target.value));
    this.form.addEventListener("submit", event => {
      event.preventDefault();
      this.form.hidePopover();
    });
    this.form.addEventListener("click", event => {
      if (event.detail && event.target.closest("label")) this.form.hidePopover(); // a pointer, not an arrow key
    });
    this.form.addEventListener("toggle", () => {
      models.look();
      if (this.isOpen) this.form.querySelector(":checked")?.focus();
    });
  }

  get isOpen() { return this.form.matches(":popover-open"); }

  show(chosen) {
    write(find("model-name"), chosen ? nameOf(chosen.id) : "none");
    set(find("model-name"), "data-state", chosen?.status && stateOf(chosen));
    set(find("model"), "title", chosen?.status && describe(chosen));
    write(find("models-note"), this.models.refusal);
    keep(find("model-list"), this.rows, this.models.all.map(({id}) => id), id => this.makeRow(id));
    for (const model of this.models.all) this.fill(this.rows.get(model.id), model, chosen);
  }

  makeRow(id) {
    const button = make("button", {type: "button"});
    button.addEventListener("click", () => this.models.change(button.value, id));
    return make("li", {}, make("label", {}, make("input", {type: "radio", name: "model", value: id}), id), button,
      make("p", {}, make("span", {class: "state"}), make("span", {class: "dim"})), make("p", {class: "dim"}));
  }

  fill(row, model, chosen) {
    const [label, button, {children: [state, size]}, note] = row.children, {status} = model;
    label.firstChild.disabled = !canChat(model);
    label.firstChild.checked = model === chosen;
    button.hidden = !status || model.parent; // an adapter is loaded with its model
    write(note, (canChat(model) ? "" : "Not for chats: it only computes embeddings. ") + (status?.error ?? ""));
    if (!status) return;
    set(state, "data-state", stateOf(model));
    write(state, describe(model));
    write(size, model.size ? ` · ${bytes(model.size)}` : "");
    button.value = status.value === "unloaded" ? "load" : "unload";
    write(button, button.value === "load" ? "Load" : "Unload");
    set(button, "aria-label", `${button.textContent} ${model.id}`);
  }
}
