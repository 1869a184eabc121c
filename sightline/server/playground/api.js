// Calls of the server: plain fetch, and a reader of its server-sent events.

let key = "";

export function setKey(value) {
  key = value.trim();
}

/** What went wrong, as a sentence for people. `status` is 0 where the server was not reached. */
export class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The server cannot be reached.");
  }
  if (!response.ok) throw new Problem(response.status, await messageOf(response));
  return response;
}

async function messageOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return response.statusText || "The server gave no reason.";
  }
}

export async function getJson(path) {
  return (await call(path)).json();
}

export async function getBlob(path) {
  return (await call(path)).blob();
}

/** The state of the engine, without throwing: "ready", "starting", "restarting", …, "unreachable". */
export async function engineState() {
  try {
    return (await (await fetch("/ready")).json()).engine;
  } catch {
    return "unreachable";
  }
}

/** Asks and yields each event of the answer as an object. */
export async function* ask(body, signal) {
  const response = await call("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Problem(200, event.error.message);
    yield event;
  }
  throw new Problem(200, "The connection closed before the answer was complete.");
}

/** The data of server-sent events: each ends with an empty line and may come in several pieces. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const parts = rest.split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const lines = part.split("\n").filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The connection to the server broke.");
  } finally {
    reader.releaseLock();
  }
}
