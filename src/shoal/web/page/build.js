// Small helpers to make elements.

export const get = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function table(element, heads, rows) {
  const line = (cells, tag) => make("tr", {}, ...cells.map((text) => make(tag, tag === "th" ? { scope: "col" } : {}, text)));
  element.replaceChildren(make("thead", {}, line(heads, "th")), make("tbody", {}, ...rows.map((cells) => line(cells, "td"))));
}
