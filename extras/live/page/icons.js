// Icons for buttons, each with a label for screen readers.

import {createIcon, icons} from "./vendor/text.js";
import {make, set} from "./dom.js";

/** Returns a button with an icon; `label` is also its tooltip. */
export function iconButton(name, label, act, attributes = {}) {
  const button = make("button", {type: "button", class: "icon", "aria-label": label, title: label, ...attributes}, icon(name));
  if (act) button.addEventListener("click", act);
  return button;
}

export const icon = name => createIcon(icons[name], {width: 18, height: 18, "aria-hidden": "true"});

/** Fills the buttons of a page that name their icon. */
export function fillIcons(place) {
  for (const button of place.querySelectorAll("[data-icon]")) {
    button.prepend(icon(button.dataset.icon));
    set(button, "title", button.getAttribute("aria-label"));
  }
}

/** Copies a text; the button shows for a moment that it has. Browsers allow the clipboard only to pages of https or this machine. */
export async function copy(button, text) {
  const area = make("textarea", {class: "hidden"});
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    button.after(area);
    area.value = text;
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.firstChild.replaceWith(icon("Check"));
  setTimeout(() => button.firstChild.replaceWith(icon("Copy")), 1500);
}
