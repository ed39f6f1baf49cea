// Requests to this server. With a wrong key, or none, they throw `Refused` with status 401.

const KEY = "kvarn-key";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function keepKey(key) {
  sessionStorage.setItem(KEY, key);
}

function headers() {
  const key = sessionStorage.getItem(KEY);
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function answerOf(path, options) {
  const response = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  if (!response.ok) {
    throw new Refused(response.status, reasonOf(await response.text(), response.status));
  }
  return response;
}

function reasonOf(text, status) {
  try {
    const { error } = JSON.parse(text);
    return error.message ?? error;
  } catch {
    return `The server answered with status ${status}.`;
  }
}

export async function get(path) {
  return (await answerOf(path, {})).json();
}

export async function remove(path) {
  return (await answerOf(path, { method: "DELETE" })).json();
}

/** The events of an answer: {name, data} with data parsed, or {comment}. Throws `Refused` for an
 * error among them. body: a file, or what becomes JSON. */
export async function* post(path, body, signal) {
  const response = await answerOf(path, {
    method: "POST",
    ...(body instanceof Blob
      ? { body }
      : { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } }),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = eventOf(block);
      if (event?.data?.error) throw new Refused(0, event.data.error.message);
      if (event) yield event;
    }
  }
}

function eventOf(block) {
  const event = { name: "", data: null };
  for (const line of block.split("\n")) {
    if (line.startsWith(":")) return { comment: line.slice(1).trim() };
    if (line.startsWith("event: ")) event.name = line.slice(7);
    if (line.startsWith("data: ")) {
      const text = line.slice(6);
      if (text === "[DONE]") return null;
      event.data = JSON.parse(text);
    }
  }
  return event;
}
