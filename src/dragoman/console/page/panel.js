// Parts of the pages of a hub: panels that stay true, and tables that become lists on a phone.

import { empty, failure, fill, h, line, plural, toast, when } from "./dom.js";

const REFRESH_SECONDS = 5;
const NUMBERS = new Set(["Calls", "Tokens in", "Cached", "Tokens out", "Messages", "Runs", "Size", "Stored", "At most"]);

/** Seconds since 1970 as a time. */
export const at = (seconds, text) => (seconds ? when(new Date(seconds * 1000).toISOString(), text) : h("span.muted", {}, "–"));
export const until = (time) => { const s = Math.round((Date.parse(time) - Date.now()) / 1000); return s <= 0 ? "now" : s < 120 ? `in ${s} s` : s < 7200 ? `in ${Math.round(s / 60)} min` : s < 172_800 ? `in ${Math.round(s / 3600)} h` : `in ${plural(Math.round(s / 86_400), "day")}`; };

export function table(name, heads, rows) {
  return h("div.tablewrap", { tabindex: "0", role: "region", "aria-label": name }, h("table.stack", {},
    h("thead", {}, h("tr", {}, heads.map((t) => h("th", { scope: "col", class: NUMBERS.has(t) ? "num" : "" }, t)))), h("tbody", {}, rows)));
}

export const cell = (label, content, attributes = {}) => h("td", { data: { label }, ...attributes }, content);

/** A panel that is read when it is shown and every few seconds (`busy`: every second), but not while somebody types in it. */
export function panel(load, { refresh = true } = {}) {
  const node = h("div.stackview", { tabindex: "-1" });
  let drawn = "", busy = false, ticks = 0;
  async function draw(force = false) {
    if (!force && (node.querySelector("input:focus, textarea:focus, select:focus") || !node.isConnected)) return;
    try {
      const { content, state, ...more } = await load(() => draw(true));
      busy = more.busy;
      const sign = JSON.stringify(state ?? null);
      if (!force && sign === drawn && drawn !== "null") return;
      drawn = sign;
      const focused = node.contains(document.activeElement);
      fill(node, content);
      if (focused && !node.contains(document.activeElement)) node.focus({ preventScroll: true });
    } catch (error) {
      if (!node.childElementCount || force) fill(node, empty("This could not be read", line(error.message, 300)));
    }
  }
  node.redraw = () => draw(true);
  draw(true);
  const timer = refresh && setInterval(() => {
    if (!node.isConnected) clearInterval(timer);
    else if (busy || ++ticks % REFRESH_SECONDS === 0) draw();
  }, 1000);
  return node;
}

export const act = (work, changed, done) => async () => {
  try { await work(); if (done) toast(done); changed?.(); } catch (error) { failure(error); }
};
