// The page: state in, questions out, pieces of answers onto the page. Nothing is computed or rounded here.

import { ask } from "./ask.js";
import { budget } from "./budget.js";
import { get, make, put, table } from "./build.js";
import { chart, ruler } from "./chart.js";
import { announce, choice, flag, number, situations } from "./controls.js";
import { copy, csv, save, standalone } from "./files.js";
import { read, write } from "./state.js";

const PACE = 40; // milliseconds between two questions while a slider moves
const CROWDS = {
  any: { label: "any crowd", words: "nothing about the other users’ vectors" },
  identical: { label: "identical crowd", short: "identical", words: "all others hold one vector (the paper’s idealised crowd)" },
  local: { label: "no shuffler", words: "the server sees who sent what, in every round" },
  only: {}, // called by the name of the mechanism, with the words of its statement
};

const page = await (await fetch("api/fields")).json();
let state = read(page);
let kind = page.kinds[state.mechanism] ?? page.kinds[page.start];
let answers = {}, attacks = {}, curves = {}, setting = null, problem = false, fresh = new Set(), whole = new Set(), wanted = null;

// The text of a field: as it was typed, or where the field starts.
const field = (name) => kind.fields[name] ?? page.fields[name];
const text = (name) => state[name] ?? field(name).start;
const lower = (words) => `${words[0].toLowerCase()}${words.slice(1)}`;

// Controls: those of the mechanism are made anew when it changes, from what its parameters say.

const QUESTION = ["epsilon", "clip", "dimension"]; // fields that no picture has as its axis
const controls = {};
let shownKind = null;
function showFields() {
  if (shownKind === state.mechanism) return;
  shownKind = state.mechanism;
  for (const name of Object.keys(controls)) if (!QUESTION.includes(name)) delete controls[name];
  for (const [name, of] of Object.entries(kind.fields)) {
    controls[name] = of.kind === "flag" ? flag(name, of, typed) : number(name, of, moved);
    controls[name].lock?.addEventListener("click", () => lock(name));
  }
  // What most people leave as it is stands below the rest, out of sight unless it differs from its start.
  const rowsOf = (special) => Object.entries(kind.fields).filter(([, of]) => of.is_special === special).map(([name]) => controls[name].row);
  const isUsed = Object.entries(kind.fields).some(([name, of]) => of.is_special && text(name) !== of.start);
  const special = rowsOf(true);
  get("sliders").replaceChildren(...rowsOf(false),
    ...(special.length ? [make("details", { open: isUsed }, make("summary", {}, "Special cases"), ...special)] : []));
}
controls.epsilon = number("epsilon", page.fields.epsilon, typed);
get("target").append(controls.epsilon.row);
for (const name of ["clip", "dimension"]) {
  controls[name] = number(name, page.fields[name], typed);
  get("cost-fields").append(controls[name].row);
}
const setSituation = situations(get("situations"), page, (value) => { state.mechanism = value; follow(); send(true); });
const setAdjacency = choice(get("adjacency"), "adjacency", [
  { value: "zero-out", text: "zero-out", more: "a vector becomes zero" },
  { value: "replace", text: "replace", more: "a vector becomes any other" },
], (value) => { state.adjacency = value; send(true); });
const setCrowd = choice(get("crowd"), "crowd", [
  { value: "any", text: "anything", more: "the one to publish" },
  { value: "identical", text: "one vector", more: "idealised" },
], (value) => { state.crowd = value; show(); send(true); });
for (const odds of ["10", "100", "1,000", "10,000"]) get("odds").append(make("option", { value: odds }, odds));
get("odds").addEventListener("change", () => { state.odds = get("odds").value; showAttack(); remember(); });
get("with-local").addEventListener("change", () => { state.local = get("with-local").checked ? "yes" : ""; showCurve(); remember(); });
get("hold").addEventListener("change", () => {
  state.hold = get("hold").checked ? held()[0] : "";
  follow();
  send(true);
});

// Of users, noise and rounds one is locked, one is moved and the third is solved for.
function triple() { return page.unknowns.filter((name) => name in kind.fields); }
function held() {
  const free = triple().filter((name) => triple().length < 3 || name !== state.keep);
  return free.includes("sigma") && state.axis !== "sigma" ? ["sigma", ...free.filter((name) => name !== "sigma")] : free.filter((name) => name !== state.axis).concat(free);
}
function lock(name) {
  state.keep = name;
  if (state.hold === name) state.hold = held()[0];
  follow();
  send(true);
}
function moved(name, words, done) {
  state[name] = words;
  if (field(name).stops.length) state.axis = name;
  if (state.hold === name) state.hold = triple().find((other) => other !== name && (triple().length < 3 || other !== state.keep));
  follow();
  send(done);
}
function typed(name, words, done) {
  state[name] = words;
  send(done);
}

// Everything on the left as the state says.
function follow() {
  if (!page.kinds[state.mechanism]) state.mechanism = page.start;
  kind = page.kinds[state.mechanism];
  if (state.hold && !triple().includes(state.hold)) state.hold = held()[0];
  if (!(state.axis in kind.fields)) state.axis = "rounds";
  showFields();
  setSituation(state.mechanism);
  setAdjacency(state.adjacency);
  setCrowd(state.crowd);
  get("crowd-set").hidden = !kind.crowd;
  get("hold").checked = Boolean(state.hold);
  get("hold-more").hidden = !state.hold;
  get("odds").value = state.odds;
  get("with-local").checked = Boolean(state.local);
  get("with-local").parentElement.hidden = !kind.crowd;
  for (const [name, control] of Object.entries(controls)) {
    control.set(text(name));
    if (QUESTION.includes(name)) continue;
    const part = Boolean(state.hold) && triple().length === 3 && triple().includes(name);
    control.mark({ solved: state.hold === name, locked: part && state.keep === name, lockable: part });
  }
  if (state.hold) {
    const locked = triple().length === 3 ? ` Locked: ${lower(field(state.keep).label)}.` : "";
    put(get("hold-words"), `${field(state.hold).label} is solved for${kind.crowd ? `, for ${CROWDS[headline()].label}` : ""}: move anything else.${locked}`);
  }
  get("verdict").replaceChildren("This is ", make("b", {}, state.mechanism), `: ${kind.trust}.`);
}

// Questions

let timer = null, last = 0, turn = 0, asked = "";
function send(now) {
  clearTimeout(timer);
  const wait = now ? 0 : Math.max(0, last + PACE - performance.now());
  if (wait > 0) timer = setTimeout(question, wait); else question();
}
function questionTexts() {
  const names = [...Object.keys(kind.fields), ...QUESTION];
  const { mechanism, adjacency, crowd, axis, hold } = state;
  return { mechanism, adjacency, crowd, axis, hold, ...Object.fromEntries(names.map((name) => [name, text(name)])) };
}
function question() {
  clearTimeout(timer);
  const texts = questionTexts();
  // A key on a slider is noticed twice, as it moves and as it stops: a question is sent once.
  if (asked === JSON.stringify(texts)) { remember(); return; }
  asked = JSON.stringify(texts);
  last = performance.now();
  const mine = ++turn;
  [fresh, whole, wanted] = [new Set(), new Set(), null];
  remember();
  busy("computing …");
  stale();
  ask("answers", { state: texts }, (piece) => { if (mine === turn) take(piece); });
}
function take(piece) {
  const kinds = { setting: takeSetting, bound: takeBound, epsilon: takeEpsilon, attack: takeAttack, curve: takeCurve, solved: takeSolved, caution: takeCaution, deployments: takeDeployments, note: takeNote, error: takeError, end: takeEnd };
  kinds[piece.piece]?.(piece);
}
function takeSetting(piece) {
  setting = piece;
  wrong(null);
  for (const id of ["python", "shell"]) {
    // A line is broken between words, not at a hyphen within one; what is copied is the same.
    get(id).replaceChildren(...piece[id].split(/(\s+)/).map((word) => /\S/.test(word) ? make("span", { class: "word" }, word) : word));
  }
  const { error } = piece;
  get("cost-words").replaceChildren(`${error.estimate} by at most `, make("strong", { id: "cost" }, error.total), ` (root mean square), ${error.relative} times C.`);
  put(get("cost-more"), error.sampling === "0" ? "" : `The noise alone: ${error.noise}. Who happens to take part: at most ${error.sampling}.`);
  // A whole number is shown with its commas once nobody is typing it.
  for (const [name, words] of Object.entries(piece.whole)) {
    if (document.activeElement?.id !== name && /^[0-9]+$/.test(text(name))) { state[name] = words; controls[name].set(words); }
  }
}
// The number alone: what is known from below, and the sentence, follow.
function takeBound({ crowd, upper, text }) {
  answers[crowd] = { ...answers[crowd], epsilon: { upper, text: { upper: text.upper, lower: "…" } } };
  known(crowd);
}
function takeEpsilon(piece) {
  answers[piece.crowd] = piece;
  whole.add(piece.crowd);
  known(piece.crowd);
  if (piece.crowd === headline() && wanted) { wanted(); wanted = null; }
}
function known(crowd) {
  fresh.add(crowd);
  if (crowd === headline()) {
    busy(""); // what matters is there; the rest comes as it comes
    const { upper } = answers[crowd].epsilon.text;
    later(() => announce(`Epsilon is at most ${upper}, assuming ${CROWDS[crowd].words ?? assumes(answers[crowd])}.`));
  } else if (crowd === "identical") busy("any crowd follows …");
  show();
}
function takeAttack(piece) {
  if (!fresh.has("attack")) { attacks = {}; fresh.add("attack"); }
  attacks[piece.crowd] = piece;
  showAttack();
}
function takeCurve(piece) {
  if (!fresh.has("curve")) { curves = {}; fresh.add("curve"); }
  const known = curves[piece.crowd] ?? [];
  curves[piece.crowd] = [...known, ...piece.points].sort((a, b) => a.x - b.x);
  showCurve();
}
function takeDeployments({ rows: deployed }) {
  get("deployments").hidden = deployed.length === 0;
  get("deployment-rows").replaceChildren(...deployed.map(({ name, upper, trust }) => make("tr", {},
    make("th", { scope: "row" }, name), make("td", { class: "upper" }, upper), make("td", { class: "soft" }, trust))));
}
function takeCaution(piece) {
  get("caution").hidden = false;
  put(get("caution"), piece.text);
}
function takeSolved(piece) {
  const name = field(piece.field).label;
  if (piece.crowd === "identical" && headline() === "any") {
    put(get("hold-words"), `${name}: ${piece.text} for an identical crowd. Any crowd follows; this may take some seconds …`);
    return;
  }
  state[piece.field] = piece.text;
  controls[piece.field].set(piece.text);
  put(get("hold-words"), `${name}: ${piece.text}, ${piece.words}.`);
  remember();
}
function takeNote(piece) {
  get("note").hidden = false;
  put(get("note"), `Note: ${piece.text}`);
}
function takeError(piece) {
  busy("");
  wrong(piece);
  [setting, asked] = [null, ""];
  [answers, attacks, curves] = [{}, {}, {}]; // no number stands beside a setting that has none
  show();
  showAttack();
  showCurve();
}
function takeEnd() { busy(""); }

function wrong(piece) {
  problem = Boolean(piece?.field);
  for (const [name, control] of Object.entries(controls)) control.wrong(piece?.field === name ? piece.text : null);
  const places = { adjacency: "error-adjacency" };
  for (const [field, id] of [["adjacency", "error-adjacency"], [null, "error-page"]]) {
    const here = piece && (piece.field === field || (field === null && !controls[piece.field] && !places[piece.field]));
    get(id).hidden = !here;
    put(get(id), here ? piece.text : "");
  }
}

// What is shown

const headline = () => kind.crowd ? (state.crowd === "identical" ? "identical" : "any") : "only";
const called = (name) => name === "only" ? state.mechanism : CROWDS[name].label;
const rows = () => kind.crowd ? ["any", "identical", "local"] : ["only"];

function busy(text) { put(get("busy"), text); get("answer").setAttribute("aria-busy", String(Boolean(text))); }
function stale() {
  get("note").hidden = true;
  get("caution").hidden = true;
  get("deployments").hidden = true;
  for (const element of document.querySelectorAll("[data-crowd]")) element.classList.add("stale");
  get("hero").classList.add("stale");
  get("sentence").classList.add("stale");
  get("short").classList.add("stale");
  get("right").classList.add("stale");
  get("curve").classList.add("stale");
  get("attack").classList.add("stale");
}
const assumes = (answer) => answer?.facts?.find(([name]) => name === "assumes")?.[1] ?? "";
function show() {
  const main = headline();
  const piece = answers[main], isFresh = fresh.has(main);
  put(get("hero"), piece ? piece.epsilon.text.upper : "…");
  get("hero").classList.toggle("stale", Boolean(piece) && !isFresh);
  get("hero").dataset.main = main;
  put(get("hero-words"), piece ? `for ${called(main)}` : problem ? "the marked field needs another value" : "");
  put(get("sticky"), piece ? `ε ≤ ${piece.epsilon.text.upper}` : problem ? "see the marked field" : "ε …");
  put(get("sticky-name"), called(main));
  put(get("short"), piece?.short ?? "");
  get("short").classList.toggle("stale", !whole.has(main));
  put(get("sentence"), piece?.sentence ?? "");
  get("sentence").classList.toggle("stale", !whole.has(main));
  get("facts").replaceChildren(...(piece?.facts ?? []).flatMap(([name, words]) => [make("dt", {}, name), make("dd", {}, words)]));
  get("crowds").replaceChildren(...rows().map((name) => {
    const answer = answers[name];
    return make("tr", { "data-crowd": name, class: `${answer && !fresh.has(name) ? "stale" : ""} ${name === main ? "main" : ""}` },
      make("th", { scope: "row" }, make("span", { class: "assumed" }, make("i", { class: `swatch ${name}`, "aria-hidden": "true" }), make("span", {}, make("b", {}, called(name)), " ", make("span", { class: "soft words" }, CROWDS[name].words ?? assumes(answer))))),
      make("td", { class: "upper" }, answer ? answer.epsilon.text.upper : "…"),
      make("td", { class: "lower" }, answer ? answer.epsilon.text.lower : "…"));
  }));
  ruler(get("ruler"), rows().toReversed().filter((name) => answers[name]).map((name) => ({
    name, label: called(name), value: answers[name].epsilon.upper, text: answers[name].epsilon.text.upper, main: name === main,
  })), page.ticks);
}
function showCurve() {
  const shown = rows().filter((name) => (name !== "local" || state.local) && curves[name]?.length);
  const axis = setting?.axis ?? state.axis;
  const name = field(axis)?.label ?? "";
  if (!name) return; // the answer to come is of another mechanism
  put(get("h-curve"), `ε against ${lower(name)}`);
  const now = shown.flatMap((crowd) => curves[crowd]).find((p) => p.xtext === setting?.now) ?? null;
  const marks = now && shown.flatMap((crowd) => curves[crowd].filter((p) => p.x === now.x).map((p) => ({ name: crowd, upper: p.upper })));
  const label = `Epsilon against ${name}, ${shown.map(called).join(", ")}`;
  get("curve").classList.toggle("stale", !fresh.has("curve"));
  chart(get("curve"), {
    label, xlabel: name, ylabel: "ε (upper bound; band: bracket)", xname: name,
    lines: shown.map((crowd) => ({ name: crowd, label: called(crowd), short: CROWDS[crowd].short, points: curves[crowd], dots: true })),
    mark: now && { x: now.x, points: marks },
  }, page.ticks);
  table(get("curve-table"), ["crowd", name, "ε at least", "ε at most"],
    shown.flatMap((crowd) => curves[crowd].map((p) => [called(crowd), p.xtext, p.text.lower, p.text.upper])));
}
function showAttack() {
  const main = headline();
  const piece = attacks[main];
  const odds = get("odds").value || "100";
  const attackCase = piece?.cases.find((candidate) => candidate.odds === odds);
  put(get("right"), attackCase ? attackCase.right : "…");
  get("right").classList.toggle("stale", Boolean(attackCase) && !fresh.has("attack"));
  put(get("of"), odds);
  get("attack").classList.toggle("stale", !fresh.has("attack"));
  const shown = rows().filter((name) => attacks[name]);
  const guess = (attacks[shown[0]]?.points ?? []).map((p) => ({ x: p.x, lower: 0, upper: p.x }));
  const label = `True positive rate of the best attack against its false positive rate, ${shown.map(called).join(", ")}, and guessing`;
  chart(get("attack"), {
    label, xlabel: "wrong (false positive rate)", ylabel: "right (true positive rate)", xname: "wrong", fixed: true,
    lines: [...shown.map((name) => ({ name, label: name === "only" ? "best attack" : CROWDS[name].label, short: CROWDS[name].short, points: attacks[name].points })), { name: "guess", label: "guessing", points: guess }],
    mark: null,
  }, page.ticks);
  table(get("attack-table"), ["crowd", "false positive rate", "true positive rate at least", "at most"],
    shown.flatMap((name) => attacks[name].points.map((p) => [called(name), p.xtext, p.text.lower, p.text.upper])));
}

// Links, files, looks

let memory = null;
function link() {
  const used = Object.entries(kind.fields).filter(([name, of]) => !of.is_special || text(name) !== of.start).map(([name]) => name);
  const names = [...used, ...(state.hold ? ["epsilon"] : []), "clip", "dimension"];
  return write(state, { ...Object.fromEntries(names.map((name) => [name, text(name)])), mechanism: state.mechanism });
}
function remember() {
  clearTimeout(memory);
  memory = setTimeout(() => history.replaceState(null, "", `#${link()}`), 250);
}
let speech = null;
function later(what) { clearTimeout(speech); speech = setTimeout(what, 700); }

const main = () => answers[headline()];
const about = () => `${main()?.sentence ?? ""}`;
const points = (curvesByCrowd) => Object.entries(curvesByCrowd).flatMap(([crowd, listed]) => listed.map((p) => [crowd, p.x, p.lower, p.upper]));
get("copy-link").addEventListener("click", () => copy(`${location.origin}${location.pathname}#${link()}`, get("copy-link")));
// A statement is copied or saved when it stands there: at once, or as soon as it comes.
function once(id, what) { get(id).addEventListener("click", () => { if (whole.has(headline())) what(); else wanted = what; }); }
for (const id of ["python", "shell"]) {
  get(`copy-${id}`).addEventListener("click", () => copy(get(id).textContent, get(`copy-${id}`)));
}
once("copy-sentence", () => { copy(main().sentence, get("copy-sentence")); });
const ENDINGS = { markdown: ["md", "text/markdown"], latex: ["tex", "application/x-tex"], yaml: ["yaml", "application/yaml"], json: ["json", "application/json"] };
// The document is written by the server, for what stands on the page now; what was solved for has its value there.
get("save-record").addEventListener("click", () => {
  const [doc, format] = [get("document").value, get("format").value];
  const [ending, type] = ENDINGS[format];
  get("save-record").disabled = true;
  ask("record", { state: { ...questionTexts(), hold: "" }, document: doc, format }, (piece) => {
    if (piece.piece === "record") save(`privacy-${doc}.${ending}`, piece.text, type);
    if (piece.piece === "error") takeError(piece);
    if (piece.piece === "end" || piece.piece === "error") get("save-record").disabled = false;
  });
});
once("save-json", () => {
  const statements = Object.fromEntries(rows().filter((name) => whole.has(name)).map((name) => [name, answers[name].data]));
  const curve = { axis: setting?.axis, points: fresh.has("curve") ? curves : {} };
  const attack = fresh.has("attack") ? Object.fromEntries(Object.entries(attacks).map(([name, one]) => [name, one.points])) : {};
  const everything = { shoal: page.version, link: link(), statements, curve, attack, error: setting?.error, python: setting?.python, shell: setting?.shell };
  save("privacy.json", JSON.stringify(everything, null, 2), "application/json");
});
get("save-svg").addEventListener("click", () => save("epsilon.svg", standalone(get("curve").firstChild, about()), "image/svg+xml"));
get("save-csv").addEventListener("click", () => save("epsilon.csv", csv(["crowd", setting?.axis, "epsilon_lower", "epsilon_upper"], points(curves)), "text/csv"));
get("save-attack-svg").addEventListener("click", () => save("attack.svg", standalone(get("attack").firstChild, about()), "image/svg+xml"));
get("save-attack-csv").addEventListener("click", () => save("attack.csv",
  csv(["crowd", "fpr", "tpr_lower", "tpr_upper"], points(Object.fromEntries(Object.entries(attacks).map(([name, one]) => [name, one.points])))), "text/csv"));
get("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
});

const tabs = ["explore", "budget"];
function open(name, focus) {
  state.tab = tabs.includes(name) ? name : "explore";
  for (const tab of tabs) {
    get(tab).hidden = tab !== state.tab;
    get(`tab-${tab}`).setAttribute("aria-selected", String(tab === state.tab));
    get(`tab-${tab}`).tabIndex = tab === state.tab ? 0 : -1;
  }
  document.body.dataset.tab = state.tab;
  if (focus) get(`tab-${state.tab}`).focus();
  remember();
}
tabs.forEach((name, i) => {
  get(`tab-${name}`).addEventListener("click", () => open(name));
  get(`tab-${name}`).addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") open(tabs[1 - i], true);
  });
});
get("skip").addEventListener("click", (event) => { event.preventDefault(); get("answer").focus(); });
addEventListener("hashchange", () => { state = read(page); open(state.tab); follow(); send(true); });
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; show(); showCurve(); showAttack(); } });

put(get("version"), page.version);
budget(page);
if (page.budget && !location.hash) state.tab = "budget";
open(state.tab);
follow();
show();
send(true);
document.body.inert = false; // from here on everything listens
