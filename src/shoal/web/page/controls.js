// Questions in words, sliders with typed values, choices.

import { get, make, put } from "./build.js";

// A slider's place is the stop nearest to a typed value, on a logarithmic scale.
function nearest(values, text) {
  const parts = text.replaceAll(",", "").replaceAll("_", "").split("/").map(Number);
  const value = parts.length === 2 ? parts[0] / parts[1] : parts[0];
  if (!(value > 0)) return null;
  let best = 0;
  for (let i = 1; i < values.length; i++) {
    if (Math.abs(Math.log(values[i] / value)) < Math.abs(Math.log(values[best] / value))) best = i;
  }
  return best;
}

// A choice of yes or no, with the same parts as a number.
export function flag(name, field, change) {
  const box = make("input", { type: "checkbox", id: name, "aria-describedby": `help-${name} error-${name}` });
  const wrong = make("p", { class: "error", id: `error-${name}`, role: "alert", hidden: true });
  box.addEventListener("change", () => change(name, box.checked ? "yes" : "", true));
  return {
    row: make("div", { class: "number", "data-name": name }, make("label", { class: "switch", for: name }, box, field.label),
      make("span", { class: "soft help", id: `help-${name}` }, field.help), wrong),
    set(text) { box.checked = text === "yes"; },
    wrong(text) { wrong.hidden = !text; put(wrong, text ?? ""); },
    mark() {},
  };
}

// One number: label, typed value, slider (where the field has stops), error. `change(name, text, done)` gets it.
export function number(name, field, change, prefix = "") {
  const id = prefix + name;
  const typed = make("input", { id, type: "text", inputmode: "decimal", autocomplete: "off", spellcheck: "false", "aria-describedby": `help-${id} error-${id}` });
  const label = make("label", { for: id }, field.label);
  const help = make("span", { class: "soft help", id: `help-${id}` }, field.help);
  const wrong = make("p", { class: "error", id: `error-${id}`, role: "alert", hidden: true });
  const tag = make("span", { class: "tag", hidden: true }, "solved");
  const lock = make("button", { type: "button", class: "lock", "aria-pressed": "false", hidden: true });
  const row = make("div", { class: "number", "data-name": name },
    make("div", { class: "number-head" }, make("span", { class: "number-name" }, label, tag, lock), typed));
  let slider = null;
  if (field.stops.length) {
    slider = make("input", { type: "range", id: `slider-${id}`, min: 0, max: field.stops.length - 1, step: 1, "aria-label": `${field.label}: slider` });
    slider.addEventListener("input", () => { typed.value = field.stops[slider.value]; say(); change(name, typed.value, false); });
    slider.addEventListener("change", () => change(name, typed.value, true));
    row.append(slider);
  }
  row.append(help, wrong);
  const say = () => slider?.setAttribute("aria-valuetext", typed.value);
  typed.addEventListener("input", () => { place(); change(name, typed.value, false); });
  typed.addEventListener("change", () => change(name, typed.value, true));
  function place() {
    const stop = slider && nearest(field.values, typed.value);
    if (slider && stop !== null) slider.value = stop;
    say();
  }
  return {
    row, lock,
    set(text) { if (typed.value !== text) typed.value = text; place(); },
    wrong(text) {
      wrong.hidden = !text;
      put(wrong, text ?? "");
      if (text) typed.setAttribute("aria-invalid", "true"); else typed.removeAttribute("aria-invalid");
    },
    mark({ solved, locked, lockable }) {
      tag.hidden = !solved;
      row.classList.toggle("solved", solved);
      typed.disabled = locked;
      if (slider) slider.disabled = locked;
      lock.hidden = !lockable;
      lock.setAttribute("aria-pressed", String(locked));
      put(lock, locked ? "locked" : "lock");
      lock.setAttribute("aria-label", `${locked ? "Locked" : "Lock"}: ${field.label}`);
    },
  };
}

// Radio buttons in a row.
export function choice(where, name, choices, change) {
  const inputs = choices.map(({ value, text, more }) => {
    const input = make("input", { type: "radio", name, value, id: `${name}-${value}` });
    input.addEventListener("change", () => change(value));
    where.append(make("label", { class: "choice", for: input.id }, input,
      make("span", { class: "choice-text" }, make("b", {}, text), more ? make("span", { class: "soft" }, " ", ...prose(more)) : "")));
    return input;
  });
  return (value) => inputs.forEach((input) => { input.checked = input.value === value; });
}

// A text in which words between backticks are code.
function prose(text) {
  return text.split("`").map((part, i) => i % 2 ? make("code", {}, part) : part);
}

// "What do you have?", and then which of the mechanisms of that situation; `change(kind)` gets what they lead to.
export function situations(where, page, change) {
  const groups = Object.fromEntries(page.situations.map(({ value }) => [value, []]));
  for (const [kind, { situation }] of Object.entries(page.kinds)) groups[situation].push(kind);
  const choices = make("div", { class: "choices" });
  where.append(make("fieldset", { class: "question" }, make("legend", { class: "hidden" }, "What do you have?"), choices));
  const setSituation = choice(choices, "situation", page.situations, (value) => change(page.situations.find((situation) => situation.value === value).lead));
  const blocks = Object.entries(groups).map(([situation, kinds]) => {
    const inside = make("div", { class: "choices" });
    const set = choice(inside, `kind-${situation}`, kinds.map((kind) => ({ value: kind, text: kind, more: page.kinds[kind].description })), change);
    const block = make("fieldset", { class: "question" }, make("legend", {}, "Which of these?"), inside);
    where.append(block);
    return { situation, set, block, single: kinds.length === 1 };
  });
  return (kind) => {
    const { situation } = page.kinds[kind];
    setSituation(situation);
    for (const { situation: own, set, block, single } of blocks) {
      block.hidden = own !== situation || single;
      set(kind);
    }
  };
}

export function announce(text) { put(get("live"), text); }
