// The audit log: who called what, and what came of it.

import { get } from "./api.js";
import { button, empty, fill, h, line, moment, pill } from "./dom.js";
import { jsonTree } from "./json.js";

const PAGE = 100;

const outcome = (text) => (text ? pill(text, /^ok$/i.test(text) ? "good" : "bad") : "–");

export function auditView() {
  const body = h("tbody"), note = h("div.tablenote");
  const filter = h("input", { type: "search", placeholder: "Filter what is loaded", "aria-label": "Filter what is loaded", oninput: draw });
  const node = h("div.view", {}, h("div.viewhead", {}, h("h1", {}, "Audit"), filter),
    h("div.tablewrap", { tabindex: "0", role: "region", "aria-label": "Audit entries" }, h("table.stack", {}, h("thead", {}, h("tr", {}, ["Time", "Who", "What", "Outcome", "More"].map((t) => h("th", { scope: "col" }, t)))), body)), note);
  let entries = [], next = null, loaded = false;

  async function load(after) {
    try {
      const page = await get("audit", { limit: PAGE, after });
      entries = after ? entries.concat(page.entries) : page.entries;
      next = page.next;
      loaded = true;
      draw();
    } catch (error) { fill(note, empty("The audit log could not be read", line(error.message, 300))); }
  }

  function draw() {
    const wanted = filter.value.trim().toLowerCase();
    const found = entries.filter((e) => !wanted || JSON.stringify(e).toLowerCase().includes(wanted));
    fill(body, found.map((e) => h("tr", {},
      h("td.nowrap.mono.small", { data: { label: "Time" } }, moment(e.at)),
      h("td", { data: { label: "Who" } }, line(e.principal, 60) || "–"),
      h("td", { data: { label: "What" } }, line(e.operation, 80), " ", h("span.muted", {}, line(e.agent, 40))),
      h("td", { data: { label: "Outcome" } }, outcome(line(e.outcome, 80))),
      h("td", {}, h("details", {}, h("summary", {}, "JSON"), jsonTree(e, { open: 2, copy: false }))))));
    fill(note, !loaded ? null : !entries.length ? empty("No entries", "Nothing was audited yet. docs/operating.md says how to turn it on.") : next ? button("Older", () => load(next), { class: "quiet" }) : null);
  }

  load();
  return { title: "Audit", node };
}
