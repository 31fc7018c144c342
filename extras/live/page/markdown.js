// Markdown as elements: headings, lists, tables, quotes, code and links. Nothing in the text becomes markup of its own.

import {make} from "./dom.js";

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)/, HEADING = /^(#{1,6})\s+(.*)$/, RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/, QUOTE = /^ {0,3}> ?(.*)$/, TABLE_RULE = /^\s*\|?( *:?-+:? *\|)+ *:?-* *:?\s*$/;
const INLINE = /(`+)(.+?)\1(?!`)|\*\*(.+?)\*\*|__(.+?)__|~~(.+?)~~|\*([^\s*][^*]*)\*|\b_([^\s_][^_]*)_\b|\[([^\]]+)\]\((https?:[^\s)]+)\)|(https?:\/\/[^\s<>)]*[^\s<>).,;:!?])/;

/** Returns the elements of a text, which may end in the middle of a construct. */
export function render(text) {
  return blocks(text.split("\n"));
}

function blocks(lines) {
  const found = [];
  let place = 0;
  while (place < lines.length) {
    const line = lines[place], fence = FENCE.exec(line), heading = HEADING.exec(line);
    if (!line.trim()) place += 1;
    else if (fence) {
      const end = lines.findIndex((other, index) => index > place && other.trim().startsWith(fence[1]) && !other.trim().slice(fence[1].length));
      const last = end < 0 ? lines.length : end;
      found.push(code(lines.slice(place + 1, last).join("\n"), fence[2]));
      place = last + 1;
    } else if (heading) {
      found.push(make(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2])));
      place += 1;
    } else if (RULE.test(line)) {
      found.push(make("hr"));
      place += 1;
    } else if (QUOTE.test(line)) {
      const end = until(lines, place, other => !QUOTE.test(other));
      found.push(make("blockquote", {}, ...blocks(lines.slice(place, end).map(other => QUOTE.exec(other)[1]))));
      place = end;
    } else if (ITEM.test(line)) {
      const end = until(lines, place + 1, (other, index) => endsList(lines, place, index));
      found.push(list(lines.slice(place, end)));
      place = end;
    } else if (line.includes("|") && TABLE_RULE.test(lines[place + 1] ?? "")) {
      const end = until(lines, place, other => !other.includes("|"));
      found.push(table(lines.slice(place, end)));
      place = end;
    } else {
      const end = until(lines, place + 1, other => !other.trim() || [FENCE, HEADING, RULE, QUOTE, ITEM].some(form => form.test(other)));
      found.push(make("p", {}, ...inline(lines.slice(place, end).join("\n"))));
      place = end;
    }
  }
  return found;
}

function until(lines, begin, ends) {
  const found = lines.slice(begin).findIndex((line, index) => ends(line, begin + index));
  return found < 0 ? lines.length : begin + found;
}

/** True if the line at `index` is not part of the list that begins at `place`. */
function endsList(lines, place, index) {
  const line = lines[index], item = ITEM.exec(line), first = ITEM.exec(lines[place]);
  if (!line.trim()) return false;
  if (item) return item[1].length <= first[1].length + 1 && isOrdered(item) !== isOrdered(first);
  return !/^\s/.test(line) && !lines[index - 1].trim();
}

const isOrdered = ([, , mark]) => /\d/.test(mark);

/** A list with the lists inside its items, which are indented. */
function list(lines) {
  const first = ITEM.exec(lines[0]), [, indent, mark] = first, number = Number.parseInt(mark, 10);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= indent.length + 1) items.push([item[3]]);
    else items.at(-1).push(line.replace(/^( {1,4}|\t)/, ""));
  }
  const children = items.map(([text, ...rest]) => make("li", {}, ...inline(text), ...blocks(rest)));
  return isOrdered(first) ? make("ol", number === 1 ? {} : {start: number}, ...children) : make("ul", {}, ...children);
}

function table(lines) {
  const cells = line => line.trim().replace(/^\||\|$/g, "").split("|").map(cell => cell.trim());
  const row = (line, tag) => make("tr", {}, ...cells(line).map(cell => make(tag, tag === "th" ? {scope: "col"} : {}, ...inline(cell))));
  const [head, , ...body] = lines;
  return make("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": "Table"}, make("table", {},
    make("thead", {}, row(head, "th")), make("tbody", {}, ...body.map(line => row(line, "td")))));
}

function code(text, language) {
  const button = make("button", {type: "button", class: "copy", "aria-label": `Copy the ${language || "code"}`}, "Copy");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return make("figure", {class: "code"}, make("figcaption", {}, make("span", {}, language || "text"), button),
    make("pre", {tabindex: 0}, make("code", {}, text)));
}

function inline(text) {
  const parts = [];
  let rest = text;
  for (let found = INLINE.exec(rest); found; found = INLINE.exec(rest)) {
    if (found.index) parts.push(rest.slice(0, found.index));
    const [whole, , code, bold, strong, gone, slanted, emphasis, label, target, address] = found;
    if (code !== undefined) parts.push(make("code", {}, code.trim()));
    else if (bold ?? strong) parts.push(make("strong", {}, ...inline(bold ?? strong)));
    else if (gone) parts.push(make("s", {}, ...inline(gone)));
    else if (slanted ?? emphasis) parts.push(make("em", {}, ...inline(slanted ?? emphasis)));
    else parts.push(make("a", {href: target ?? address, target: "_blank", rel: "noopener noreferrer"}, label ?? address));
    rest = rest.slice(found.index + whole.length);
  }
  return rest ? [...parts, rest] : parts;
}
