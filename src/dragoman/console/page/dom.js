// Creates DOM nodes. Text from agents only ever becomes a text node: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/** h("div.card#x", {onclick, "aria-label": "..."}, child, [children], "text", null) */
export function h(spec, attributes, ...children) {
  const [head, ...classes] = spec.split(".");
  const [tag, id] = head.split("#");
  const node = document.createElement(tag || "div");
  if (id) node.id = id;
  if (classes.length) node.className = classes.join(" ");
  set(node, attributes);
  append(node, children);
  return node;
}

export function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.classList.add(...value.split(" ").filter(Boolean));
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "value") node.value = value;
    else if (name === "checked" || name === "disabled" || name === "selected" || name === "hidden") node[name] = !!value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  return node;
}

export function append(node, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export function fill(node, ...children) {
  node.replaceChildren();
  return append(node, children);
}

const ICONS = {
  agents: "M12 3a4 4 0 1 1 0 8 4 4 0 0 1 0-8zM4 21c0-4 3.6-7 8-7s8 3 8 7",
  chat: "M4 5h16v11H9l-5 4z",
  tasks: "M4 6h2M4 12h2M4 18h2M9 6h11M9 12h11M9 18h11",
  webhooks: "M12 4v6l-5 8M12 10l5 8M7 18h10",
  audit: "M5 3h14v18H5zM8 8h8M8 12h8M8 16h5",
  metrics: "M4 20V10M10 20V4M16 20v-7M22 20H2",
  inspect: "M10.5 4a6.5 6.5 0 1 1 0 13 6.5 6.5 0 0 1 0-13zM15.5 15.5 21 21",
  catalogue: "M5 4h11a3 3 0 0 1 3 3v13H8a3 3 0 0 1-3-3zM5 17a3 3 0 0 1 3-3h11M9 8h6",
  hub: "M12 8a4 4 0 1 1 0 8 4 4 0 0 1 0-8zM12 2v6M12 16v6M2 12h6M16 12h6",
  send: "M4 12 20 4l-5 16-3.5-6.5z",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  close: "M6 6l12 12M18 6 6 18",
  menu: "M4 6h16M4 12h16M4 18h16",
  sun: "M12 8a4 4 0 1 1 0 8 4 4 0 0 1 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.5 1.5M17.5 17.5 19 19M5 19l1.5-1.5M17.5 6.5 19 5",
  moon: "M20 14A8.5 8.5 0 0 1 10 4a8.5 8.5 0 1 0 10 10z",
  auto: "M12 3a9 9 0 1 1 0 18zM12 3a9 9 0 0 0 0 18z",
  out: "M10 4H5v16h5M9 12h12M17 8l4 4-4 4",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  key: "M8 11a4 4 0 1 1 0 8 4 4 0 0 1 0-8zM11 12l9-9M17 6l3 3",
};

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name] || ICONS.agents);
  svg.append(path);
  return svg;
}

export const button = (label, onclick, attributes = {}) =>
  h("button.button", { type: "button", onclick, ...attributes }, label);

export const iconButton = (name, label, onclick, attributes = {}) =>
  h("button.iconbutton", { type: "button", title: label, "aria-label": label, onclick, ...attributes }, icon(name));

// -- text that agents wrote -------------------------------------------------------------------------------------

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

/** Control and direction characters become visible: a file name cannot turn itself around. */
export function visible(text) {
  return String(text).replace(HIDDEN, (c) => {
    const code = c.codePointAt(0);
    if (code === 0x0d) return "";
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return `⟨${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

/** Values of a foreign card may have any type. */
export const list = (value) => (Array.isArray(value) ? value : []);
export const dict = (value) => (value && typeof value === "object" && !Array.isArray(value) ? value : {});

/** A text as one segment of an address; half a character is replaced. */
export const segment = (text) => encodeURIComponent(String(text ?? "").toWellFormed());

/** One line of text, cut at `limit` characters. */
export function line(text, limit = 200) {
  const raw = typeof text === "object" && text ? JSON.stringify(text) : String(text ?? "");
  const short = raw.length > limit ? raw.slice(0, limit) + "…" : raw;
  return visible(short).replace(/\s+/g, " ").trim();
}

const FIRST_CHARACTERS = 20_000;
const LINE_CHARACTERS = 5_000;

/** Split so that no text node has a line that the browser lays out for seconds. */
function breakable(text) {
  if (text.length <= LINE_CHARACTERS) return text;
  return text.replace(/[^\n]{5000}/g, "$&\n");
}

/** A block of text. A long one is cut; a button shows more of it, a piece at a time. */
export function block(text, { tag = "pre.text", first = FIRST_CHARACTERS } = {}) {
  const whole = String(text ?? "");
  let shown = Math.min(first, whole.length);
  const body = h(tag, { dir: "auto" }, breakable(visible(whole.slice(0, shown))));
  if (shown === whole.length) return body;
  const left = () => `Show more (${bytes(whole.length - shown)} left)`;
  const more = button(left(), () => {
    const next = Math.min(shown + 200_000, whole.length);
    body.append(breakable(visible(whole.slice(shown, next))));
    shown = next;
    if (shown === whole.length) more.remove();
    else more.textContent = left();
  }, { class: "small more" });
  return h("div.cut", {}, body, h("div.row", {}, more, copyButton(() => whole)));
}

export function copyButton(text, label = "Copy") {
  const node = button(label, async () => {
    const value = typeof text === "function" ? text() : text;
    node.textContent = (await copy(value)) ? "Copied" : "Not copied";
    setTimeout(() => (node.textContent = label), 1500);
  }, { class: "small quiet" });
  return node;
}

/** The same as a small picture beside an id. */
export function copyIcon(text, what) {
  const node = iconButton("copy", `Copy ${what}`, async () => toast((await copy(text)) ? `Copied ${what}.` : "Not copied."), { class: "tiny" });
  return node;
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { "aria-hidden": "true" });
    area.value = text;
    area.className = "offscreen";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// -- numbers and times ------------------------------------------------------------------------------------------

export function bytes(n) {
  if (n < 1000) return `${n} B`;
  if (n < 1e6) return `${(n / 1e3).toFixed(n < 1e4 ? 1 : 0)} KB`;
  return `${(n / 1e6).toFixed(1)} MB`;
}

export const count = (n) => Number(n ?? 0).toLocaleString("en");
export const plural = (n, one, many = one + "s") => `${count(n)} ${n === 1 ? one : many}`;

/** Milliseconds as a duration. */
export function duration(ms) {
  if (!Number.isFinite(ms)) return "";
  if (ms < 0) ms = 0;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
  if (ms < 86_400_000) return `${Math.floor(ms / 3_600_000)} h ${Math.round((ms % 3_600_000) / 60_000)} min`;
  return plural(Math.floor(ms / 86_400_000), "day");
}

export const ago = (time) => (time ? `${duration(Date.now() - Date.parse(time))} ago` : "");

export function clock(time, millis = true) {
  const date = new Date(time);
  if (!time || isNaN(date)) return "";
  const pad = (n, w = 2) => String(n).padStart(w, "0");
  const base = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  return millis ? `${base}.${pad(date.getMilliseconds(), 3)}` : base;
}

export function moment(time) {
  const date = new Date(time);
  if (!time || isNaN(date)) return "";
  const today = date.toDateString() === new Date().toDateString();
  return today ? clock(time, false) : `${date.toISOString().slice(0, 10)} ${clock(time, false)}`;
}

/** A time that says how long ago it was, and keeps that true while it is on the page. */
export function when(time, text = ago) {
  const known = !isNaN(Date.parse(time));
  const node = h("time", { datetime: known ? time : null, title: known ? new Date(time).toISOString() : "" }, known ? text(time) : "–");
  if (known) node.tick = () => (node.textContent = text(time));
  return node;
}
setInterval(() => document.querySelectorAll("time").forEach((node) => node.tick?.()), 5000);

// -- states -----------------------------------------------------------------------------------------------------

export const STATES = {
  TASK_STATE_SUBMITTED: ["submitted", "idle"],
  TASK_STATE_WORKING: ["working", "busy"],
  TASK_STATE_INPUT_REQUIRED: ["input required", "wait"],
  TASK_STATE_AUTH_REQUIRED: ["auth required", "wait"],
  TASK_STATE_COMPLETED: ["completed", "good"],
  TASK_STATE_FAILED: ["failed", "bad"],
  TASK_STATE_REJECTED: ["rejected", "bad"],
  TASK_STATE_CANCELED: ["canceled", "idle"],
};
export const FINAL = new Set(["TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_REJECTED", "TASK_STATE_CANCELED"]);
export const WAITING = new Set(["TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED"]);

export function stateName(state) {
  return (STATES[state] || [line(String(state || "unknown").replace(/^TASK_STATE_/, "").toLowerCase(), 30)])[0];
}

export function badge(state) {
  const tone = (STATES[state] || ["", "idle"])[1];
  return h("span.badge", { class: tone }, stateName(state));
}

export const pill = (text, tone = "", title) => h("span.pill", { class: tone, title }, text);

// -- small parts of the page ------------------------------------------------------------------------------------

let noteArea;
export function toast(text, tone = "") {
  noteArea ??= document.body.appendChild(h("div.toasts", { role: "status", "aria-live": "polite" }));
  const node = h("div.toast", { class: tone }, line(text, 400));
  noteArea.append(node);
  setTimeout(() => node.remove(), 6000);
}

export const failure = (error) => toast(error.message || String(error), "bad");

export function empty(title, text, ...more) {
  return h("div.empty", {}, h("h2", {}, title), text && h("p", {}, text), ...more);
}

/** Tabs: [["id", "Label", () => node], ...]. A panel is made when it is first shown. */
export function tabs(entries, { label, selected, onselect, keep = true } = {}) {
  const made = new Map();
  const panel = h("div.tabpanel", { role: "tabpanel", tabindex: "0" });
  const list = h("div.tabs", { role: "tablist", "aria-label": label });
  const buttons = new Map();
  let current = null;
  function select(id, focus = false) {
    const entry = entries.find((e) => e[0] === id) || entries[0];
    current = entry[0];
    for (const [key, node] of buttons) {
      const on = key === current;
      node.setAttribute("aria-selected", on);
      node.tabIndex = on ? 0 : -1;
      if (on && focus) node.focus();
    }
    if (!keep || !made.has(current)) made.set(current, entry[2]());
    fill(panel, made.get(current));
    panel.setAttribute("aria-label", entry[1]);
    onselect?.(current);
  }
  for (const [id, name] of entries) {
    const node = h("button.tab", { type: "button", role: "tab", onclick: () => select(id), data: { tab: id } }, name);
    buttons.set(id, node);
    list.append(node);
  }
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const ids = entries.map((e) => e[0]);
    select(ids[(ids.indexOf(current) + step + ids.length) % ids.length], true);
  });
  const node = h("div.tabbed", {}, list, panel);
  select(selected ?? entries[0][0]);
  return Object.assign(node, { select, refresh: () => { made.delete(current); select(current); }, current: () => current,
    rename: (id, text) => { const b = buttons.get(id); if (b && b.textContent !== text) b.textContent = text; } });
}

/** A modal dialog. Returns it; `close()` closes it. One that `stays` is not closed by a click beside it or by Escape. */
export function dialog(title, content, actions = [], { stays = false } = {}) {
  const node = h("dialog.dialog", { "aria-label": title },
    h("div.dialoghead", {}, h("h2", {}, title), iconButton("close", "Close", () => node.close())),
    h("div.dialogbody", {}, content),
    actions.length ? h("div.row.end", {}, actions) : null);
  node.addEventListener("close", () => node.remove());
  node.addEventListener("click", (event) => !stays && event.target === node && node.close());
  if (stays) node.addEventListener("cancel", (event) => event.preventDefault());
  document.body.append(node);
  node.showModal();
  return node;
}

/** Ask before something that cannot be taken back. */
export function confirmed(title, text, verb) {
  return new Promise((resolve) => {
    let answer = false;
    const box = dialog(title, h("p", {}, text), [
      button("Keep it", () => box.close(), { class: "quiet" }),
      button(verb, () => { answer = true; box.close(); }, { class: "danger" }),
    ]);
    box.addEventListener("close", () => resolve(answer));
  });
}

/** Call `work` once per animation frame, however often it is asked for. */
export function eachFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    const run = () => { if (!asked) return; asked = false; work(); };
    requestAnimationFrame(run);
    setTimeout(run, 250); // a tab in the background gets no frames
  };
}

export function debounce(work, ms = 200) {
  let timer;
  return (...args) => { clearTimeout(timer); timer = setTimeout(() => work(...args), ms); };
}

/** An address of an agent is shown whole before it is opened. Only http, https and mailto can be opened. */
export function openable(url) {
  try {
    const parsed = new URL(String(url));
    return ["http:", "https:", "mailto:"].includes(parsed.protocol) ? parsed : null;
  } catch {
    return null;
  }
}

export function askToOpen(url) {
  const parsed = openable(url);
  if (!parsed) return toast("This address cannot be opened.", "bad");
  const box = dialog("Open this address?", [
    h("p.muted", {}, "An agent wrote it. It opens in a new tab, without a referrer."),
    block(parsed.href, { tag: "pre.text.address", first: 2000 }),
  ], [
    copyButton(parsed.href),
    button("Open", () => { window.open(parsed.href, "_blank", "noopener,noreferrer"); box.close(); }, { class: "primary" }),
  ]);
}

/** A link whose text and address are an agent's: a button that asks first. */
export function link(label, url) {
  const parsed = openable(url);
  const content = label === null || label === undefined ? line(url, 120) : label;
  if (!parsed) return h("span.deadlink", { title: line(url, 300) }, content);
  return h("button.link", { type: "button", title: line(parsed.href, 300), onclick: () => askToOpen(parsed.href) }, content);
}
