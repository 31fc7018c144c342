// The models behind this address: their states, and the commands that change them. A server of one model has no states.

import {getJson} from "./api.js";
import {percent} from "./format.js";

const QUICK_MS = 400, SLOW_MS = 3000;

export class Models {
  /** `onRead` is called after each look, with the error of one that failed; `isWatched` returns true while changes matter. */
  constructor(onRead, isWatched) {
    Object.assign(this, {onRead, isWatched, all: [], hasStates: false, refusal: ""});
    document.addEventListener("visibilitychange", () => this.look());
  }

  find(id) { return this.all.find(model => model.id === id); }

  /** The model for `wanted`, which may be gone: else one that is loaded, else the first. */
  choose(wanted, isFit = () => true) {
    const fit = this.all.filter(isFit);
    return fit.find(({id}) => id === wanted) ?? fit.find(({status}) => status?.value === "loaded") ?? fit[0];
  }

  /** Reads the states now, and again after a while: soon if one changes. */
  async look() {
    clearTimeout(this.timer);
    if (document.hidden) return;
    let failure = null;
    try {
      if (!this.all.length || this.hasStates) this.all = (await getJson("v1/models")).data;
      this.hasStates = this.all.some(({status}) => status);
    } catch (error) {
      failure = error;
    }
    this.onRead(failure);
    clearTimeout(this.timer);
    const isChanging = this.isWatched() || this.all.some(({status}) => status?.value === "loading");
    this.timer = setTimeout(() => this.look(), this.hasStates && isChanging ? QUICK_MS : SLOW_MS);
  }

  /** Loads or unloads a model; `refusal` is why it could not. */
  async change(verb, model) {
    this.refusal = await getJson(`models/${verb}`, {json: {model}}).then(() => "", error => error.message);
    await this.look();
  }
}

export const canChat = ({architecture}) => architecture?.output_modalities.includes("text") ?? true;

/** The value for `data-state`. */
export const stateOf = ({status}) => status.failed ? "failed" : status.value;

/** The state in words, with the progress of a load. */
export function describe({status}) {
  const {phase, fraction} = status.progress ?? {};
  if (status.value !== "loading") return status.failed ? "failed" : status.value;
  return [phase || "loading", fraction ? percent(fraction) : ""].join(" ").trim();
}

/** A model's name; of one that is served by its directory, the last part. */
export const nameOf = id => id.startsWith("/") ? id.split("/").at(-1) : id;
