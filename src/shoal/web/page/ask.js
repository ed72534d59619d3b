// Questions to the server. Answers come in pieces, a line each; a newer question ends the older one.

const page = Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(16)).join("");
const open = new Map();

export async function ask(where, data, take) {
  open.get(where)?.abort();
  const stop = new AbortController();
  open.set(where, stop);
  try {
    const answer = await fetch(`api/${where}`, {
      method: "POST", signal: stop.signal, headers: { "content-type": "application/json" },
      body: JSON.stringify({ page: `${page}-${where}`, ...data }),
    });
    if (!answer.ok) throw new Error(`the server answered ${answer.status}: ${await answer.text()}`);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (stop.signal.aborted) return;
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) take(JSON.parse(line));
    }
  } catch (problem) {
    if (stop.signal.aborted) return;
    take({ piece: "error", field: null, text: `the page has lost its server (${problem.message})` });
  }
}
