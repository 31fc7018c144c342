// Calls to the server, with the key that was typed in. It is kept for this tab only, and sent nowhere else.

const KEY = "sluice-key";
let chosen = ""; // the model that requests without a name of their own are about, at a server of models

export const getKey = () => sessionStorage.getItem(KEY) ?? "";

export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

export const setModel = name => { chosen = name; };

/** A refusal; `status` is 0 if the server could not be reached. `retryS`: seconds after which to try again, 0 if unknown. */
export class Refused extends Error {
  constructor(status, message, retryS = 0) {
    super(message);
    Object.assign(this, {status, retryS});
  }
}

/** Returns the response of a call that was answered well; throws `Refused` with the server's own words. */
export async function call(path, options = {}) {
  const headers = {...options.headers}, model = options.model ?? chosen;
  if (model) headers["X-Model"] = encodeURIComponent(model);
  if (getKey()) headers.Authorization = `Bearer ${getKey()}`;
  if (options.json !== undefined) headers["Content-Type"] = "application/json";
  const body = options.json === undefined ? undefined : JSON.stringify(options.json);
  let reply;
  try {
    reply = await fetch(path, {method: options.method ?? (body ? "POST" : "GET"), headers, body, signal: options.signal});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "the server cannot be reached");
  }
  if (reply.ok) return reply;
  const content = await reply.json().catch(() => null);
  throw new Refused(reply.status, content?.error?.message ?? `the server answered ${reply.status}`, Number(reply.headers.get("Retry-After")));
}

export const getJson = async (path, options) => (await call(path, options)).json();

const PROGRESS = ": progress ";

/** Yields the data of each event of a stream, as JSON; `onProgress` gets the place in the queue of one that waits. */
export async function* events(reply, onProgress = () => {}) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      if (frame === "data: [DONE]") return;
      if (frame.startsWith("data: ")) yield JSON.parse(frame.slice(6));
      else if (frame.startsWith(PROGRESS)) onProgress(JSON.parse(frame.slice(PROGRESS.length)));
    }
  }
}
