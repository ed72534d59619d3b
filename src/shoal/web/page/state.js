// The state of the page: texts by name. The part of the address after # holds all of it.

export const START = {
  tab: "explore", mechanism: "check-in", adjacency: "zero-out", crowd: "any", axis: "rounds",
  hold: "", keep: "users", odds: "100", local: "",
};

// A value that nobody has typed is absent: it is then where its field starts, which depends on the mechanism.
export function read(page) {
  const state = { ...START };
  const names = new Set([...Object.keys(START), ...Object.keys(page.fields), ...Object.values(page.kinds).flatMap((kind) => Object.keys(kind.fields))]);
  for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
    if (names.has(name)) state[name] = text;
  }
  return state;
}

// What differs from the start is enough, but a link must still say the same when a start changes: all values go in.
export function write(state, values) {
  const parts = new URLSearchParams();
  for (const [name, text] of Object.entries(values)) if (text !== "") parts.set(name, text.replaceAll(",", ""));
  for (const name of Object.keys(START)) {
    if (!parts.has(name) && state[name] !== START[name]) parts.set(name, state[name]);
  }
  return parts.toString();
}
