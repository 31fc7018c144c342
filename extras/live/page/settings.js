// The panel with the settings of the open conversation, and the fields of a request that follow from them.

import {find, set, write} from "./dom.js";
import {EXAMPLE, readTools} from "./tools.js";

const DEFAULT = "model's";

export class Settings {
  /** `onChange` gets the settings after each change. */
  constructor(onChange) {
    const form = find("settings-form");
    this.fields = [...form.querySelectorAll("[name]")];
    form.addEventListener("submit", event => event.preventDefault());
    form.addEventListener("change", () => onChange(this.read()));
    find("tools-text").addEventListener("input", showTools);
    find("tools-example").addEventListener("click", () => {
      find("tools-text").value = EXAMPLE;
      onChange(this.read());
    });
    find("reset").addEventListener("click", () => {
      this.show({});
      onChange(this.read());
    });
  }

  show(settings) {
    for (const field of this.fields) {
      if (field.type === "checkbox") field.checked = settings[field.name] !== false;
      else field.value = settings[field.name] ?? "";
    }
    showTools();
  }

  /** Shows the values that the model has by default. */
  showDefaults(defaults) {
    for (const {name} of this.fields.filter(({type, placeholder}) => type === "number" && (!placeholder || placeholder.startsWith(DEFAULT)))) {
      set(find("settings-form").elements[name], "placeholder", name in defaults ? `${DEFAULT}: ${defaults[name]}` : DEFAULT);
    }
  }

  read() {
    showTools();
    return Object.fromEntries(this.fields.map(({name, type, value, checked}) =>
      [name, type === "checkbox" ? checked : type === "number" && value ? Number(value) : value || undefined]));
  }
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

/** Returns the fields of a request, by the settings of a conversation. Throws an `Error` if its tools are wrong. */
export function bodyOf({model, system, tools, thinks, ...numbers}, messages) {
  const first = system?.trim() ? [{role: "system", content: system}] : [];
  return {sampling_defaults: "chat", ...numbers, messages: [...first, ...messages], tools: readTools(tools), reasoning_effort: thinks === false ? "none" : undefined};
}
