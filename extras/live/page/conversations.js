// The conversations that this browser keeps. They are stored nowhere else.

const KEY = "sluice-conversations";
const MOST = 200;

export class Conversations {
  constructor() {
    try {
      this.all = JSON.parse(localStorage.getItem(KEY)) ?? [];
    } catch {
      this.all = [];
    }
  }

  /** Returns a new conversation with the settings of the latest one. */
  create(settings = this.all[0]?.settings ?? {}) {
    const conversation = {id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", settings: {...settings}, messages: []};
    this.all.unshift(conversation);
    return conversation;
  }

  remove(conversation) {
    this.all = this.all.filter(other => other !== conversation);
    this.save();
  }

  /** Writes all that have messages; the oldest go if the browser has no room. */
  save() {
    const kept = this.all.filter(({messages}) => messages.length).slice(0, MOST);
    for (let number = kept.length; number >= 0; number -= 1) {
      try {
        localStorage.setItem(KEY, JSON.stringify(kept.slice(0, number)));
        return;
      } catch (error) {
        if (error.name !== "QuotaExceededError") return; // the browser keeps nothing for this page
      }
    }
  }
}
