// The numbers of /metrics, with how they change while this page is open.

import { get } from "./api.js";
import { count, duration, empty, fill, h, line } from "./dom.js";

const EVERY_MS = 3000;
const MOST_ROWS = 60;

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
      m.type === "histogram" ? histogram(m) : numbers(m))) : empty("No metrics", "None with this name."));
  }

  function numbers(m) {
    return [h("table", {}, h("tbody", {}, m.samples.slice(0, MOST_ROWS).map((s) => {
      const old = before.get(id(m, s)), delta = old === undefined ? 0 : s.value - old;
      return h("tr", {}, h("td.grow.mono.small", {}, labels(s.labels) || h("span.muted", {}, "all")), h("td.num.delta", {}, delta ? (delta > 0 ? "+" : "") + number(delta) : ""), h("td.num", {}, number(s.value)));
    }))), m.samples.length > MOST_ROWS ? h("p.muted.small", {}, `${count(m.samples.length - MOST_ROWS)} more`) : null];
  }

  load();
  const timer = setInterval(load, EVERY_MS);
  return { title: "Metrics", node, close: () => clearInterval(timer) };
}

/** One row for each set of labels: how many, the mean, two percentiles, and how they are spread. */
function histogram(m) {
  const rows = new Map();
  for (const { name = "", labels: all = {}, value } of m.samples) {
    const { le, ...rest } = all;
    const key = JSON.stringify(rest);
    if (!rows.has(key)) rows.set(key, { labels: rest, buckets: [], sum: 0, count: 0 });
    const row = rows.get(key);
    if (le !== undefined) row.buckets.push([le === "+Inf" ? Infinity : Number(le), value]);
    else if (name.endsWith("_sum")) row.sum = value;
    else if (name.endsWith("_count")) row.count = value;
  }
  const seconds = m.name.endsWith("_seconds");
  const show = (v) => (v === Infinity ? "more" : seconds ? duration(v * 1000) : number(v));
  return h("table", {}, h("thead", {}, h("tr", {}, ["", "Count", "Mean", "Half below", "95 % below", "Spread"].map((t) => h("th", { scope: "col" }, t)))),
    h("tbody", {}, [...rows.values()].slice(0, MOST_ROWS).map((row) => {
      row.buckets.sort((a, b) => a[0] - b[0]);
      const below = (share) => row.buckets.find(([, n]) => n >= share * row.count)?.[0];
      const steps = row.buckets.map(([, n], i) => n - (i ? row.buckets[i - 1][1] : 0));
      const most = Math.max(1, ...steps);
      return h("tr", {}, h("td.mono.small", {}, labels(row.labels) || h("span.muted", {}, "all")), h("td.num", {}, count(row.count)), h("td.num.nowrap", {}, row.count ? show(row.sum / row.count) : "–"),
        h("td.num.nowrap", {}, row.count ? show(below(0.5)) : "–"), h("td.num.nowrap", {}, row.count ? show(below(0.95)) : "–"),
        h("td", {}, h("div.spark", { "aria-hidden": "true" }, steps.map((n, i) => { const bar = h("i", { title: `up to ${show(row.buckets[i][0])}: ${count(n)}` }); bar.style.height = `${Math.round((100 * n) / most)}%`; return bar; }))));
    })));
}

const labels = (all) => line(Object.entries(all || {}).map(([n, v]) => `${n}=${v}`).join("  "), 200);
const number = (v) => (v === null || v === undefined ? "–" : Number.isInteger(v) ? count(v) : Number(v).toPrecision(4));
