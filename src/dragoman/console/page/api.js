// Calls of the operator API, and its streams: they reconnect by themselves and give every event once.

const BASE = "api/";

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// Who wants to know whether the server is there: "online", "offline", "denied".
const watchers = new Set();
let connection = "online";
export const onConnection = (watch) => { watchers.add(watch); watch(connection); return () => watchers.delete(watch); };
function connectionIs(now) {
  if (now === connection) return;
  connection = now;
  for (const watch of watchers) watch(now);
}
export const connectionState = () => connection;

async function refusal(response) {
  let code = String(response.status), message = `The server answered ${response.status} ${response.statusText}`.trim();
  try {
    const { error } = await response.json();
    code = error.code || code;
    message = error.message || message;
  } catch { /* not JSON: the status says enough */ }
  return new ApiError(response.status, code, message);
}

async function request(method, path, { query, body, signal, headers } = {}) {
  const url = BASE + path + queryString(query);
  let response;
  try {
    response = await fetch(url, {
      method, signal, credentials: "same-origin", redirect: "error",
      headers: { ...(body === undefined ? {} : { "content-type": "application/json" }), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    connectionIs("offline");
    throw new ApiError(0, "offline", "The server does not answer.");
  }
  if (response.status === 401) connectionIs("denied");
  else if (response.status < 500) connectionIs("online");
  if (!response.ok) throw await refusal(response);
  return response;
}

export function queryString(query) {
  const pairs = Object.entries(query || {}).filter(([, v]) => v !== undefined && v !== null && v !== "");
  return pairs.length ? "?" + new URLSearchParams(pairs) : "";
}

export async function get(path, query, options = {}) {
  return (await request("GET", path, { query, ...options })).json();
}

export async function post(path, body = {}, options = {}) {
  const response = await request("POST", path, { body, ...options });
  return response.status === 204 ? null : response.json();
}

export async function put(path, body) {
  return (await request("PUT", path, { body })).json();
}

export async function patch(path, body) {
  return (await request("PATCH", path, { body })).json();
}

export async function del(path) {
  await request("DELETE", path);
}

/** The frames of an SSE body: {event, id, data}. A frame that never ends is cut at `MAX_FRAME`. */
const MAX_FRAME = 64 << 20;
export async function* frames(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pieces = [], size = 0, event = "", id = null, data = [];
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) return;
      let from = 0;
      while (true) {
        const at = value.indexOf("\n", from);
        if (at < 0) {
          pieces.push(value.slice(from));
          size += value.length - from;
          if (size > MAX_FRAME) throw new Error("an event is too long");
          break;
        }
        pieces.push(value.slice(from, at));
        let row = pieces.length === 1 ? pieces[0] : pieces.join("");
        pieces = []; size = 0; from = at + 1;
        if (row.endsWith("\r")) row = row.slice(0, -1);
        if (row === "") {
          if (data.length) yield { event: event || "message", id, data: data.join("\n") };
          event = ""; data = [];
          continue;
        }
        if (row.startsWith(":")) { yield { event: "", id, data: "" }; continue; }
        const colon = row.indexOf(":");
        const name = colon < 0 ? row : row.slice(0, colon);
        let text = colon < 0 ? "" : row.slice(colon + 1);
        if (text.startsWith(" ")) text = text.slice(1);
        if (name === "event") event = text;
        else if (name === "id") id = text;
        else if (name === "data") data.push(text);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

const SILENT_MS = 45_000;
const FIRST_RETRY_MS = 250, LAST_RETRY_MS = 5_000;

/**
 * Follow a stream of the API until `close()`. After a break it goes on behind `cursor`, so no event comes twice.
 * `on(event, data, id)` gets each; `cursor()` names the last id that was seen, or null.
 */
export function follow(path, { query, on, cursor, status, wanted = () => true }) {
  const stop = new AbortController();
  const say = (state, error) => status?.(state, error);
  (async () => {
    let wait = FIRST_RETRY_MS;
    while (!stop.signal.aborted) {
      const life = new AbortController();
      const end = () => life.abort();
      stop.signal.addEventListener("abort", end);
      let timer;
      const alive = () => { clearTimeout(timer); timer = setTimeout(end, SILENT_MS); };
      try {
        alive();
        const after = cursor?.();
        const response = await request("GET", path, {
          query: { ...(typeof query === "function" ? query() : query), ...(after ? { after } : {}) },
          signal: life.signal, headers: { accept: "text/event-stream" },
        });
        say("live");
        for await (const frame of frames(response)) {
          alive();
          wait = FIRST_RETRY_MS;
          if (stop.signal.aborted) return;
          if (frame.event && frame.data) on(frame.event, JSON.parse(frame.data), frame.id);
        }
        if (!wanted()) return say("ended");
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429) {
          return say("refused", error);
        }
      } finally {
        clearTimeout(timer);
        stop.signal.removeEventListener("abort", end);
      }
      say("lost");
      await pause(wait, stop.signal);
      wait = Math.min(wait * 2, LAST_RETRY_MS);
    }
  })();
  return { close: () => stop.abort() };
}

/** POST that is answered by a stream, once: chat. */
export async function* converse(path, body, signal) {
  const response = await request("POST", path, { body, signal, headers: { accept: "text/event-stream" } });
  try {
    for await (const frame of frames(response)) {
      if (frame.event && frame.data) yield [frame.event, JSON.parse(frame.data)];
    }
  } catch (error) {
    if (signal?.aborted) throw error;
    connectionIs("offline");
    throw new ApiError(0, "offline", "The connection was lost.");
  }
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(done, ms);
    function done() { clearTimeout(timer); signal.removeEventListener("abort", done); window.removeEventListener("online", done); resolve(); }
    signal.addEventListener("abort", done);
    window.addEventListener("online", done);
  });
}

/** While the server is away, ask until it is back. */
export async function probe() {
  try { await get("me"); } catch { /* `request` said so */ }
}
