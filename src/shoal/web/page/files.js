// Copying and saving.

import { announce } from "./controls.js";

export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without leave to use the clipboard: the way that every browser knows.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.dataset.done = "";
  announce("Copied.");
  setTimeout(() => delete button.dataset.done, 1200);
}

export function save(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

const LOOKS = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "font-size", "font-family", "font-weight", "opacity"];

// The picture with its looks written into it, so that it needs no style sheet.
export function standalone(svg, title) {
  const copied = svg.cloneNode(true);
  const from = svg.querySelectorAll("*"), to = copied.querySelectorAll("*");
  from.forEach((element, i) => {
    if (element.tagName === "title") return;
    const look = getComputedStyle(element);
    for (const name of LOOKS) to[i].setAttribute(name, look.getPropertyValue(name));
    to[i].removeAttribute("class");
  });
  copied.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copied.removeAttribute("class");
  const back = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  back.setAttribute("width", "100%");
  back.setAttribute("height", "100%");
  back.setAttribute("fill", getComputedStyle(document.documentElement).getPropertyValue("--card").trim());
  const words = document.createElementNS("http://www.w3.org/2000/svg", "title");
  words.textContent = title;
  copied.prepend(words, back);
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(copied)}\n`;
}

// Values with all their digits; an infinite bound is written so.
export function csv(heads, rows) {
  const cell = (value) => value === null ? "inf" : String(value);
  return [heads, ...rows].map((cells) => cells.map(cell).join(",")).join("\n") + "\n";
}
