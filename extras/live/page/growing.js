// A text that is shown while it is written: its complete blocks stay, and only the last one is drawn again.

import {parse} from "./markdown.js";

const UNFINISHED = /\n[ \t]{0,8}[-=*_+#>|`~\x24.\d ]{1,20}$/; // marks alone: what they mean depends on what follows

export class GrowingText {
  /** `onBlock` is called with the elements of each part that is complete. */
  constructor(place, onBlock = () => {}) {
    Object.assign(this, {place, onBlock, numDone: 0, tail: [], written: "", env: {}});
  }

  /** Shows `text`, which begins with all that has been shown; `isWhole`: nothing follows. */
  write(text, isWhole = false) {
    const rest = text.replaceAll("\r", "").slice(this.numDone), shown = isWhole ? rest : rest.replace(UNFINISHED, "\n");
    if (shown === this.written && !isWhole) return;
    this.written = shown;
    const parsed = parse(shown, this.env);
    for (const node of this.tail) node.remove();
    if (parsed.lastLine) {
      const done = parsed.done();
      this.place.append(...done);
      this.onBlock(done);
      this.numDone += offsetOf(shown, parsed.lastLine);
      this.written = null;
    }
    this.tail = parsed.last();
    this.place.append(...this.tail);
    if (isWhole) this.onBlock(this.tail);
  }
}

/** Returns where a line begins. */
function offsetOf(text, line) {
  let offset = 0;
  for (; line > 0; line -= 1) offset = text.indexOf("\n", offset) + 1;
  return offset;
}
