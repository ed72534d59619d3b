// The budget tab: a ledger's file goes to the server, what it has cost comes back.

import { ask } from "./ask.js";
import { get, make, put, table } from "./build.js";
import { number } from "./controls.js";

export function budget(page) {
  let text = page.budget, next = null;
  const given = { epsilon: "", delta: "" };
  const fields = {
    epsilon: number("epsilon", { ...page.fields.epsilon, label: "Budget ε", stops: [] }, typed, "budget-"),
    delta: number("delta", { ...page.fields.delta, stops: [] }, typed, "budget-"),
  };
  for (const field of Object.values(fields)) get("budget-fields").append(field.row);

  function typed(name, value, done) {
    given[name] = value;
    if (done) question();
  }
  get("file").addEventListener("change", async () => {
    const [file] = get("file").files;
    if (!file) return;
    text = await file.text();
    [next, given.epsilon, given.delta] = [null, "", ""];
    question();
  });
  get("next").addEventListener("change", () => { next = Number(get("next").value); question(); });

  function question() {
    if (text === null) return;
    wrong(null);
    put(get("budget-busy"), "computing …");
    for (const id of ["spent-epsilon", "spent-left", "remaining"]) get(id).classList.add("stale");
    ask("budget", { text, state: given, ...(next === null ? {} : { next }) }, take);
  }
  function wrong(piece) {
    for (const [name, field] of Object.entries(fields)) field.wrong(piece?.field === name ? piece.text : null);
    const here = piece && !fields[piece.field];
    get("error-file").hidden = !here;
    put(get("error-file"), here ? piece.text : "");
    if (here) for (const id of ["spent", "ledger-card"]) get(id).hidden = true;
  }
  function fill(id, words) {
    put(get(id), words);
    get(id).classList.remove("stale");
  }
  function take(piece) {
    if (piece.piece === "error") {
      put(get("budget-busy"), "");
      wrong(piece);
    } else if (piece.piece === "ledger") {
      fields.epsilon.set(given.epsilon || piece.epsilon);
      fields.delta.set(given.delta || piece.delta);
      get("ledger-card").hidden = false;
      get("spent").hidden = !piece.entries.length;
      table(get("ledger"), ["mechanism", "settings", "rounds"], [...piece.entries.map((one) => [one.label, one.settings, one.rounds]), ["together", piece.adjacency && `${piece.adjacency} adjacency`, piece.rounds]]);
      get("next").replaceChildren(...piece.entries.map((one, i) => make("option", { value: i }, `${one.label}: ${one.settings}`)));
      get("next").value = String(next ?? piece.entries.length - 1);
    } else if (piece.piece === "spent") {
      fill("spent-epsilon", piece.epsilon.text.upper);
      fill("spent-left", piece.left);
      put(get("spent-percent"), `${piece.percent}% of the budget${piece.exceeded ? ": exceeded" : ""}`);
      put(get("spent-budget"), `of a budget of ${piece.budget}`);
      get("spent").classList.toggle("exceeded", piece.exceeded);
      get("meter").value = piece.part;
      put(get("budget-sentence"), piece.sentence);
    } else if (piece.piece === "remaining") {
      fill("remaining", piece.rounds);
      put(get("remaining-of"), `of ${piece.of}`);
      put(get("budget-busy"), "");
    } else if (piece.piece === "end") {
      put(get("budget-busy"), "");
    }
  }
  question();
}
