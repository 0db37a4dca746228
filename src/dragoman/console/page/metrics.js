// The numbers of /metrics, with how they change while this page is open.

import { get } from "./api.js";
import { count, empty, fill, h, line } from "./dom.js";

const EVERY_MS = 3000;

export function metricsView() {
  const body = h("div.metrics"), filter = h("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter by name", oninput: () => draw() });
  const node = h("div.view", {}, h("div.viewhead", {}, h("h1", {}, "Metrics"), filter), body);
  let metrics = null, before = new Map();
  const id = (m, s) => m.name + (s.name || "") + JSON.stringify(s.labels);

  async function load() {
    try {
      const next = (await get("metrics")).metrics;
      if (metrics) before = new Map(metrics.flatMap((m) => m.samples.map((s) => [id(m, s), s.value])));
      metrics = next;
      draw();
    } catch (error) { if (!metrics) fill(body, empty("The metrics could not be read", line(error.message, 300))); }
  }

  function draw() {
    if (!metrics) return;
    const wanted = filter.value.trim().toLowerCase();
    const found = metrics.filter((m) => m.samples.length && m.name.toLowerCase().includes(wanted));
    fill(body, found.length ? found.map((m) => h("section.metric", {}, h("h2", {}, h("code", {}, line(m.name, 80)), " ", h("span.muted.small", {}, line(m.type, 20))), h("p.muted.small", {}, line(m.help, 300)),
      h("table", {}, h("tbody", {}, m.samples.slice(0, 60).map((s) => {
        const old = before.get(id(m, s)), delta = old === undefined ? 0 : s.value - old;
        return h("tr", {}, h("td.grow.mono.small", {}, labels(s) || h("span.muted", {}, "all")), h("td.num", {}, number(s.value)), h("td.num.delta", {}, delta ? (delta > 0 ? "+" : "") + number(delta) : ""));
      }))), m.samples.length > 60 ? h("p.muted.small", {}, `${count(m.samples.length - 60)} more`) : null)) : empty("No metrics", "None with this name."));
  }

  load();
  const timer = setInterval(load, EVERY_MS);
  return { title: "Metrics", node, close: () => clearInterval(timer) };
}

const labels = (s) => line(Object.entries(s.labels || {}).map(([n, v]) => `${n}=${v}`).join("  "), 200);
const number = (v) => (Number.isInteger(v) ? count(v) : Number(v).toPrecision(4));
