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

// One number: label, typed value, slider (where the field has stops), error. `change(name, text, done)` hears of it.
export function number(name, field, change, prefix = "") {
  const id = prefix + name;
  const typed = make("input", { id, type: "text", inputmode: "decimal", autocomplete: "off", spellcheck: "false", "aria-describedby": `help-${id} error-${id}` });
  const label = make("label", { for: id }, field.label);
  const help = make("span", { class: "soft help", id: `help-${id}` }, field.help);
  const wrong = make("p", { class: "error", id: `error-${id}`, role: "alert", hidden: true });
  const tag = make("span", { class: "tag", hidden: true }, "found");
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
    mark({ found, locked, lockable }) {
      tag.hidden = !found;
      row.classList.toggle("found", found);
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
      make("span", { class: "choice-text" }, make("b", {}, text), more ? make("span", { class: "soft" }, ` ${more}`) : "")));
    return input;
  });
  return (value) => inputs.forEach((input) => { input.checked = input.value === value; });
}

const KIND = {
  server: () => "balls-and-bins",
  users: (a) => a.sees === "named" ? "local" : { all: "shuffle", coin: "check-in", drawn: "subsampled" }[a.sampled],
};
const ANSWERS = {
  "balls-and-bins": { sends: "server" }, local: { sends: "users", sees: "named" },
  shuffle: { sends: "users", sees: "mixed", sampled: "all" }, "check-in": { sends: "users", sees: "mixed", sampled: "coin" },
  subsampled: { sends: "users", sees: "mixed", sampled: "drawn" },
};

// The three questions; `change(kind)` hears what they lead to.
export function questions(where, asked, change) {
  const answers = { sends: "users", sees: "mixed", sampled: "coin" };
  const parts = asked.map(({ name, ask, choices }) => {
    const inside = make("div", { class: "choices" });
    const set = choice(inside, name, choices, (value) => { answers[name] = value; show(); change(KIND[answers.sends](answers)); });
    const block = make("fieldset", { class: "question" }, make("legend", {}, ask), inside);
    where.append(block);
    return { name, set, block };
  });
  function show() {
    for (const { name, set, block } of parts) {
      set(answers[name]);
      block.hidden = (name !== "sends" && answers.sends === "server") || (name === "sampled" && answers.sees === "named");
    }
  }
  return (kind) => { Object.assign(answers, ANSWERS[kind]); show(); };
}

export function announce(text) { put(get("live"), text); }
