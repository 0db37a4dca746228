// Tasks: a live table with filters, how many are in each state, and what waits for a person.

import { follow, get } from "./api.js";
import { badge, button, count, debounce, eachFrame, empty, fill, h, line, pill, plural, segment, stateName, STATES, WAITING, when } from "./dom.js";
import { choosesTenant, ofTenant, tenantNames, tenantSelect, whose } from "./tenant_choice.js";

const PAGE = 50;
const MAX_ROWS = 2000;
const MAX_EMPTY_PAGES = 20; // a search looks at a part of the tasks at a time
const FILTERS = ["state", "agent", "tenant", "scope", "context", "text", "since", "until", "waiting"];

export function tasksView(there, me) {
  let filters = read(there.query), rows = new Map(), order = [], counts = {}, next = null, loading = 0, failed = null, live = "";

  const chips = h("div.chips", { role: "group", "aria-label": "States" });
  const body = h("tbody");
  const note = h("div.tablenote");
  const liveMark = h("span.live", { role: "status" });
  const text = h("input", { type: "search", placeholder: "Text of the first message", "aria-label": "Text of the first message", value: filters.text || "" });
  const agent = h("input", { type: "search", placeholder: "Agent", "aria-label": "Agent", value: filters.agent || "", list: "agentnames" });
  const context = h("input", { type: "search", placeholder: "Context", "aria-label": "Context", value: filters.context || "" });
  const names = h("datalist#agentnames");
  const tenant = tenantSelect((value) => change({ tenant: value }), "Every tenant");
  const since = h("select", { "aria-label": "Age" }, [["", "Any age"], ["3600", "Last hour"], ["86400", "Last day"], ["604800", "Last week"]].map(([v, t]) => h("option", { value: v }, t)));
  const go = debounce(() => change({ text: text.value.trim(), agent: agent.value.trim(), context: context.value.trim(),
    since: since.value ? new Date(Date.now() - since.value * 1000).toISOString() : "" }), 250);
  for (const input of [text, agent, context, since]) input.addEventListener("input", go);

  const node = h("div.view", {},
    h("div.viewhead", {}, h("h1", {}, "Tasks"), liveMark),
    chips,
    h("div.filters", { role: "search" }, text, tenant, agent, context, since, names),
    h("div.tablewrap", { tabindex: "0", role: "region", "aria-label": "Tasks" }, h("table.tasks", {},
      h("thead", {}, h("tr", {}, ["State", "Task", "Agent", "Updated", "Records", "Attempts", "Context"].map((t) => h("th", { scope: "col" }, t)))), body)),
    note);

  function change(values) {
    const wanted = { ...filters, ...values };
    const query = new URLSearchParams(FILTERS.filter((f) => wanted[f]).map((f) => [f, wanted[f]]));
    const hash = `tasks${query.size ? "?" + query : ""}`;
    if (location.hash.slice(1) !== hash) location.hash = hash;
  }

  async function load(more = false) {
    const mine = ++loading;
    try {
      let page = await get("tasks", { ...filters, limit: PAGE, ...(more ? { cursor: next } : {}) });
      for (let n = 0; n < MAX_EMPTY_PAGES && !page.tasks.length && page.next && mine === loading; n++) {
        page = { ...(await get("tasks", { ...filters, limit: PAGE, cursor: page.next })), counts: page.counts };
      }
      if (mine !== loading) return;
      failed = null;
      if (!more) { rows = new Map(); order = []; }
      for (const row of page.tasks) { if (!rows.has(row.key)) order.push(row.key); rows.set(row.key, row); }
      next = page.next;
      counts = page.counts || counts;
    } catch (error) {
      if (mine !== loading) return;
      failed = error;
    }
    draw();
  }

  const soon = debounce(() => load(), 400);
  const redraw = eachFrame(draw);
  const made = new Map();

  function draw() {
    const total = Object.values(counts).reduce((a, b) => a + b, 0);
    const waiting = [...WAITING].reduce((n, s) => n + (counts[s] || 0), 0);
    const chip = (label, n, on, values, tone = "") => h("button.chip", { type: "button", class: tone, "aria-pressed": on ? "true" : "false", onclick: () => change(values) }, label, h("span.n", {}, count(n)));
    fill(chips, chip("All", total, !filters.state && !filters.waiting, { state: "", waiting: "" }),
      chip("Waits for a person", waiting, !!filters.waiting, { waiting: "1", state: "" }, waiting ? "wait" : ""),
      Object.keys(STATES).filter((s) => counts[s] || filters.state === s).map((s) => chip(stateName(s), counts[s] || 0, filters.state === s, { state: s, waiting: "" }, STATES[s][1])));
    const drawn = order.map((key) => {
      const row = rows.get(key), sign = `${row.state} ${row.updated} ${row.records} ${row.attempts}`;
      let tr = made.get(key);
      if (!tr || tr.dataset.sign !== sign) { tr = rowView(row); tr.dataset.sign = sign; made.set(key, tr); }
      return tr;
    });
    fill(body, drawn);
    liveMark.textContent = live === "live" ? "live" : live === "lost" ? "reconnecting …" : "";
    liveMark.className = "live " + live;
    fill(note, failed ? empty("The tasks could not be read", line(failed.message, 300))
      : !order.length && next ? empty("Nothing found so far", "Older tasks have not been searched yet.", button("Search on", () => load(true), { class: "quiet" }))
      : !order.length ? empty("No tasks here", Object.values(filters).some(Boolean) ? "No task matches these filters." : "Send a message to an agent, and its task appears here.", h("a.button", { href: "#chat" }, "Chat"))
      : next ? button("Load more", () => load(true), { class: "quiet" }) : null);
  }

  function matches(row) {
    return (!filters.state || row.state === filters.state) && (!filters.agent || row.agent === filters.agent) && (!filters.context || row.contextId === filters.context)
      && (!filters.waiting || WAITING.has(row.state)) && (!filters.text || String(row.text).toLowerCase().includes(filters.text.toLowerCase()))
      && (!filters.tenant || row.tenant === filters.tenant) && (!filters.scope || row.scope === filters.scope) && !(filters.since && row.updated < filters.since) && !(filters.until && row.updated > filters.until);
  }

  const stream = follow("tasks/stream", {
    status(state) { const back = live === "lost" && state === "live"; live = state; if (back) load(); else draw(); },
    on(event, row) {
      if (event === "reset") return void load(); // this page read too slowly
      if (event !== "task") return;
      const old = rows.get(row.key);
      if (old && old.updated > row.updated) return;
      if (old && old.state !== row.state) { counts[old.state] = Math.max(0, (counts[old.state] || 0) - 1); counts[row.state] = (counts[row.state] || 0) + 1; }
      if (matches(row)) {
        if (!old) { order.unshift(row.key); if (order.length > MAX_ROWS) rows.delete(order.pop()); soon(); }
        rows.set(row.key, row);
      } else if (old) { order = order.filter((k) => k !== row.key); rows.delete(row.key); }
      else soon(); // a task that is not in this list changes the counts
      redraw();
    },
  });

  draw();
  load();
  if (choosesTenant(me)) tenantNames().then((all) => tenant.show(all, filters.tenant || "")).catch(() => {});
  get("agents").then(({ agents }) => fill(names, agents.map((a) => h("option", { value: a.id }, line(a.name, 60))))).catch(() => {});
  return {
    title: "Tasks", node,
    update(next) {
      filters = read(next.query);
      for (const [input, name] of [[text, "text"], [agent, "agent"], [context, "context"]]) if (document.activeElement !== input) input.value = filters[name] || "";
      tenant.value = filters.tenant || "";
      load();
      return true;
    },
    close: () => stream.close(),
  };
}

function read(query) {
  return Object.fromEntries(FILTERS.filter((f) => query.get(f)).map((f) => [f, query.get(f)]));
}

function rowView(row) {
  const waits = WAITING.has(row.state);
  return h("tr", {},
    h("td", { data: { label: "State" } }, badge(row.state), waits ? h("div.small.waitfor", {}, "for ", when(row.updated, waited)) : null),
    h("td.grow", { data: { label: "Task" } }, h("a.taskname", { href: `#task/${segment(row.key)}`, dir: "auto" }, line(row.text, 140) || h("span.muted", {}, "no text")),
      row.question && waits ? h("div.question", { dir: "auto" }, line(row.question, 200), " ",
        h("a.small", { href: `#chat/${segment(row.agent)}?task=${segment(row.key)}${ofTenant(row.tenant, "&")}` }, "Answer")) : null,
      h("div.small.muted.mono.ellipsis", {}, line(row.id, 60))),
    h("td", { data: { label: "Agent" } }, h("a", { href: `#agents/${segment(row.agent)}${ofTenant(row.tenant)}` }, line(row.agent, 40)), whose(row) ? h("div.small.muted.ellipsis", { title: line(whose(row), 200) }, line(whose(row), 40)) : null),
    h("td.nowrap", { data: { label: "Updated" } }, when(row.updated)),
    h("td.num", { data: { label: "Records" } }, count(row.records)),
    h("td.num", { data: { label: "Attempts" } }, row.attempts > 1 ? pill(count(row.attempts), "wait", plural(row.attempts, "attempt")) : count(row.attempts)),
    h("td", { data: { label: "Context" } }, h("a.mono.small.ellipsis", { href: `#tasks?context=${segment(row.contextId)}`, title: line(row.contextId, 80) }, line(row.contextId, 12))));
}

function waited(time) {
  const ms = Date.now() - Date.parse(time);
  return ms < 60_000 ? `${Math.max(0, Math.round(ms / 1000))} s` : ms < 3_600_000 ? `${Math.floor(ms / 60_000)} min` : ms < 86_400_000 ? `${Math.floor(ms / 3_600_000)} h` : plural(Math.floor(ms / 86_400_000), "day");
}
