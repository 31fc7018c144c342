// Makes elements, and changes of them only what is different: a screen that is redrawn five times a second stays still.

const SVG = "http://www.w3.org/2000/svg";

export const find = id => document.getElementById(id);

/** Returns a new element with these attributes and children (nodes or text). */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** As `make`, for SVG. */
export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) set(element, name, value);
  element.append(...children);
  return element;
}

/** Gives an attribute its value; null and false take it away. */
export function set(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Makes `parent` have one child for each of `keys`, in their order; `create` makes those that are missing. */
export function keep(parent, known, keys, create) {
  for (const [key, element] of known) {
    if (!keys.includes(key)) {
      element.remove();
      known.delete(key);
    }
  }
  keys.forEach((key, place) => {
    if (!known.has(key)) known.set(key, create(key));
    if (parent.children[place] !== known.get(key)) parent.insertBefore(known.get(key), parent.children[place] ?? null);
  });
}
