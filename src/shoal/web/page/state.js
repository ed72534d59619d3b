// The state of the page: texts by name. The part of the address after # holds all of it.

export const START = {
  tab: "explore", mechanism: "check-in", adjacency: "zero-out", crowd: "any", axis: "rounds",
  hold: "", keep: "users", odds: "100", local: "",
};

export function read(fields) {
  const state = { ...START };
  for (const [name, field] of Object.entries(fields)) state[name] = field.start;
  for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
    if (name in state) state[name] = text;
  }
  return state;
}

// What differs from the start is enough, but a link must still say the same when a start changes: all numbers go in.
export function write(state, names) {
  const parts = new URLSearchParams();
  for (const name of names) if (state[name] !== "") parts.set(name, state[name].replaceAll(",", ""));
  for (const name of Object.keys(START)) {
    if (!parts.has(name) && state[name] !== START[name]) parts.set(name, state[name]);
  }
  return parts.toString();
}
