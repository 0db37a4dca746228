// Hub: tenants, and of one tenant its agents with their constitutions, conversations, memory, files, schedules, requests, and
// what its agents cost.

import { get, patch, post, put, del } from "./api.js";
import { block, button, bytes, confirmed, count, debounce, dict, empty, failure, fill, h, line, list, pill, plural, segment, tabs, toast, when } from "./dom.js";
import { diffLines } from "./diff.js";
import { jsonTree } from "./json.js";
import { markdown } from "./markdown.js";
import { act, at, cell, panel, table, until } from "./panel.js";
import { policy, tenantList, tenantSettings, tokens } from "./tenant_admin.js";

const PAGE = 50;
const DAYS = 30;
const MAX_COMMAND_CHARACTERS = 40_000; // whoever approves a command sees all of it

export function hubView(there, me) {
  const operator = me.role === "operator";
  const body = h("div.hubbody"), head = h("div.viewhead");
  const node = h("div.view", {}, head, body);
  let now = there;

  function draw() {
    const [tenant, tab = "agents", item] = now.rest;
    if (operator && !tenant) {
      fill(head, h("h1", {}, "Hub"));
      fill(body, tabs([["tenants", "Tenants", tenantList], ["usage", "Usage", () => usage("hub/admin/usage", true)]], { label: "The hub", keep: false }));
      return;
    }
    const named = operator ? tenant : me.tenant;
    const base = `hub/tenants/${segment(named)}`, manage = operator ? `hub/admin/tenants/${segment(named)}` : base, manages = operator || me.scope === "admin";
    const to = (...rest) => ["#hub", segment(named), ...rest.map(segment)].join("/");
    fill(head, operator ? [h("h1.offscreen", {}, `Tenant ${line(named, 80)}`), h("nav.crumbs", { "aria-label": "Where you are" }, h("a", { href: "#hub" }, "Hub"), " / ", line(named, 60))] : h("h1", {}, line(named, 80)));
    let drawn = false;
    const one = (id) => (item && tab === id && !drawn ? item : ""); // whoever selects a tab wants its list
    const entries = [
      ["agents", "Agents", () => (one("agents") ? agentEditor(base, item, to) : agents(base, to))],
      ["conversations", "Conversations", () => (one("conversations") ? conversation(base, item, to) : conversations(base, to))],
      ["requests", "Requests", () => (one("requests") ? openTask(base, item) : requests(base, to))],
      ["memory", "Memory", () => memory(base)],
      ["files", "Files", () => files(base)],
      ["schedules", "Schedules", () => schedules(base, to)],
      ["usage", "Usage", () => usage(`${base}/usage`, false)],
      ["policy", "Policy", () => policy(manage, operator)],
      ...(manages ? [["tokens", "Tokens", () => tokens(manage)], ["tenant", "Tenant", () => tenantSettings(manage, named, operator)]] : []),
    ];
    fill(body, tabs(entries, { label: `Tenant ${line(named, 60)}`, selected: tab, keep: false,
      onselect: (id) => {
        if (!drawn) return;
        now = { ...now, rest: [named, id] };
        location.hash = to(id).slice(1);
      } }));
    drawn = true;
  }

  draw();
  return { title: "Hub", node, update(next) {
    const same = next.rest.join("/") === now.rest.join("/"); // a tab that was selected is drawn already
    now = next;
    if (!same) draw();
    return true;
  } };
}

// -- agents and constitutions -----------------------------------------------------------------------------------

const STORED = ["created_at", "updated_at", "version"];
const TEMPLATE = { id: "scout", name: "Scout", role: "researcher", goal: "Answers questions with sources.", capabilities: ["web"] };

const chatWith = (base, id) => `#chat/${segment(id)}?tenant=${base.split("/").at(-1)}`;

function agents(base, to) {
  return panel(async () => {
    const { agents: all } = await get(`${base}/agents`);
    return { state: all, content: [
      h("div.row", {}, h("a.button.primary", { href: to("agents", "+") }, "New agent")),
      table("Agents", ["Agent", "Role", "Model", "Changed", ""], all.map((a) => h("tr", {},
        cell("Agent", [a.code || !a.updated_at ? h("strong", {}, line(a.name, 80)) : h("a", { href: to("agents", a.id) }, line(a.name, 80)), h("div.small.muted", {}, line(a.goal, 160))], { class: "grow" }),
        cell("Role", a.code ? pill("code") : a.updated_at ? line(a.role, 40) : pill("built in")),
        cell("Model", a.code ? "–" : line(a.model, 40) || h("span.muted", {}, "the hub's")),
        cell("Changed", a.updated_at ? [at(a.updated_at), h("div.small.muted", {}, `version ${count(a.version)}`)] : "–"),
        cell("", h("a.button.small", { href: chatWith(base, a.id) }, "Chat"))))),
    ] };
  });
}

function agentEditor(base, id, to) {
  const fresh = id === "+";
  return panel(async (again) => {
    const known = fresh ? TEMPLATE : await get(`${base}/agents/${segment(id)}`);
    const versions = fresh ? [] : (await get(`${base}/agents/${segment(id)}/versions`)).versions;
    const written = JSON.stringify(Object.fromEntries(Object.entries(known).filter(([n]) => !STORED.includes(n))), null, 2);
    const text = h("textarea.mono.editor", { rows: "24", spellcheck: "false", "aria-label": "Constitution as JSON", value: written });
    const verdict = h("div.verdict", { role: "status", "aria-live": "polite" });
    const save = button(fresh ? "Create" : "Save", async () => {
      const document = parsed();
      if (!document) return;
      try {
        if (fresh) await post(`${base}/agents`, document);
        else await put(`${base}/agents/${segment(id)}`, document);
        toast("The constitution is stored. Running tasks keep the old one.");
        if (fresh) location.hash = to("agents", document.id).slice(1);
        else again();
      } catch (error) { failure(error); }
    }, { class: "primary" });
    let asked = 0;

    function parsed() {
      try {
        const document = JSON.parse(text.value);
        if (document && typeof document === "object" && !Array.isArray(document)) return document;
        say("bad", "A constitution is a JSON object.");
      } catch (error) { say("bad", `This is not JSON: ${line(error.message, 160)}`); }
      return null;
    }

    function say(tone, message, fields = []) {
      verdict.className = `verdict ${tone}`;
      save.disabled = tone === "bad";
      fill(verdict, h("p", {}, line(message, 400)), list(fields).length ? h("ul", {}, fields.map((f) => h("li", {}, h("code", {}, line(f.field, 80)), " ", line(f.reason, 300)))) : null);
    }

    async function check() {
      const mine = ++asked, document = parsed();
      if (!document) return;
      try {
        const answer = await post(`${base}/constitutions/validate`, document);
        if (mine !== asked) return;
        if (!answer.ok) say("bad", plural(answer.fields.length, "mistake"), answer.fields);
        else if (!fresh && answer.agent.id !== id) say("bad", "The id of an agent does not change.");
        else say("good", !fresh && text.value === written ? "This is what is stored." : "This can be stored.");
      } catch (error) { if (mine === asked) say("bad", error.message); }
    }
    text.addEventListener("input", debounce(check, 250));
    check();

    const remove = async () => {
      if (!(await confirmed("Delete this agent?", "Its tasks stay readable.", "Delete it"))) return;
      try { await del(`${base}/agents/${segment(id)}`); location.hash = to("agents").slice(1); } catch (error) { failure(error); }
    };
    return { content: h("div.stackview", {},
      h("div.row.wrap", {}, h("h2", {}, fresh ? "New agent" : line(known.name, 80)), h("a.button.small", { href: to("agents") }, "All agents"),
        fresh ? null : h("a.button.small", { href: chatWith(base, id) }, "Chat"), fresh ? null : button("Delete", remove, { class: "small danger" })),
      h("div.split", {}, h("div.stackview", {}, text, h("div.row", {}, save)), h("div.stackview", {}, verdict, versions.length ? versionList(base, id, versions, () => text.value) : null))) };
  }, { refresh: false });
}

function versionList(base, id, versions, current) {
  const shown = h("div");
  const pick = (version) => async () => {
    try {
      const old = await get(`${base}/agents/${segment(id)}/versions/${version}`);
      const text = JSON.stringify(Object.fromEntries(Object.entries(old).filter(([n]) => !STORED.includes(n))), null, 2);
      fill(shown, h("h3", {}, `From version ${count(version)} to what is in the editor`), diffView(text, current()));
    } catch (error) { failure(error); }
  };
  return h("section", {}, h("h3", {}, plural(versions.length, "version")),
    h("ul.plain", {}, versions.map((v) => h("li", {}, button(`Version ${count(v.version)}`, pick(v.version), { class: "small" }), " ", at(v.created_at)))), shown);
}

function diffView(before, after) {
  const rows = diffLines(before.split("\n"), after.split("\n"));
  if (rows.every(([sign]) => sign === " ")) return h("p.muted", {}, "They are the same.");
  return h("pre.code.diff", {}, rows.map(([sign, text]) => h("div", { class: { "+": "added", "-": "removed", " ": "" }[sign] }, `${sign} ${line(text, 400) === "" ? "" : text.slice(0, 400)}`)));
}

// -- conversations ----------------------------------------------------------------------------------------------

function conversations(base, to) {
  let before = null, rows = [];
  return panel(async (again) => {
    const page = await get(`${base}/conversations`, { limit: PAGE, before_updated_at: before?.updated_at, before_id: before?.id });
    rows = before ? [...rows, ...page.conversations.filter((c) => !rows.some((r) => r.id === c.id))] : page.conversations;
    return { state: before ? null : rows, content: rows.length ? [
      table("Conversations", ["Conversation", "Agent", "Messages", "Changed"], rows.map((c) => h("tr", {},
        cell("Conversation", [h("a", { href: to("conversations", c.id) }, line(c.title, 120) || `conversation ${count(c.id)}`), " ", c.archived ? pill("archived") : null], { class: "grow" }),
        cell("Agent", line(c.agent_id, 40)), cell("Messages", count(c.message_count), { class: "num" }), cell("Changed", at(c.updated_at))))),
      page.conversations.length === PAGE ? button("Load more", () => { before = rows.at(-1); again(); }, { class: "quiet" }) : null,
    ] : empty("No conversations", "They are created with the native API, or by `dragoman chat`.") };
  });
}

function conversation(base, id, to) {
  return panel(async () => {
    const one = await get(`${base}/conversations/${segment(id)}`);
    const { messages } = await get(`${base}/conversations/${segment(id)}/messages`, { limit: 200 });
    const { artifacts } = await get(`${base}/conversations/${segment(id)}/artifacts`);
    const remove = async () => {
      if (!(await confirmed("Delete this conversation?", "Its messages, files and todos are deleted, and what runs in it is canceled.", "Delete it"))) return;
      try { await del(`${base}/conversations/${segment(id)}`); location.hash = to("conversations").slice(1); } catch (error) { failure(error); }
    };
    return { state: [one, messages.length, artifacts.length], content: h("div.stackview", {},
      h("div.row.wrap", {}, h("h2", {}, line(one.title, 120) || `Conversation ${count(one.id)}`), pill(line(one.agent_id, 40)), h("a.button.small", { href: to("conversations") }, "All conversations"), button("Delete", remove, { class: "small danger" })),
      artifacts.length ? fileTable(base, artifacts) : null,
      messages.length ? h("div.messages", {}, messages.map((m) => h("article.bubble", { class: m.role === "user" ? "user" : "" },
        h("div.small.muted", {}, line(m.role, 20), " · ", at(m.created_at), m.output_tokens ? ` · ${count(m.input_tokens)} tokens in, ${count(m.output_tokens)} out` : "", m.request_id ? [" · ", taskOf(to, m.request_id)] : null),
        markdown(String(m.content ?? "").slice(0, 100_000))))) : empty("No messages", "")) };
  });
}

// -- requests, memory, files, schedules -------------------------------------------------------------------------

const STATE_TONES = { completed: "good", failed: "bad", rejected: "bad", running: "busy", working: "busy", "input-required": "wait", "auth-required": "wait" };

/** What a request waits for: yes and no for one that asks whether a command may run, all of which is shown. Others are answered in a chat. */
function question(base, r, again, to) {
  if (!r.question) return null;
  const asks = h("div", { dir: "auto" }, block(r.question, { tag: "div.lines", first: MAX_COMMAND_CHARACTERS }), dict(r.details).body ? block(r.details.body, { tag: "pre.code", first: MAX_COMMAND_CHARACTERS }) : null);
  if (!r.approval) return h("div.asksfor", {}, asks, h("a.button.small", { href: to("requests", r.request_id) }, "Open the task to answer"));
  const why = h("input", { type: "text", placeholder: "Why not", "aria-label": `Why not ${line(r.request_id, 40)}`, maxlength: "500" });
  const say = (approved, said) => async () => {
    try {
      await post(`${base}/requests/${segment(r.request_id)}/answer`, { approved, last_seq: r.last_seq, ...(approved ? {} : { comment: why.value }) });
      toast(said);
    } catch (error) { failure(error); }
    again();
  };
  return h("div.asksfor", { role: "group", "aria-label": `Request ${line(r.request_id, 40)} asks` }, asks,
    h("div.row.wrap", {}, button("Approve", say(true, "The command runs."), { class: "small primary" }), button("Refuse", say(false, "The agent is told."), { class: "small" }), why));
}

/** The task of a request, where its log is. Also for a message or a run, which know the id of their request. */
const taskOf = (to, request) => h("a.mono", { href: to("requests", request), title: "The task, with its log" }, line(request, 40));

/** Goes from a request to its task. */
function openTask(base, id) {
  const node = h("div.stackview", {}, h("p.muted", {}, "The task is looked up …"));
  get(`${base}/requests/${segment(id)}/task`).then(({ key }) => { if (node.isConnected) location.replace(`#task/${segment(key)}`); })
    .catch((error) => fill(node, empty("There is no such request", line(error.message, 300))));
  return node;
}

function requests(base, to) {
  return panel(async (again) => {
    const { requests: all } = await get(`${base}/requests`, { limit: 100 });
    return { state: all, busy: all.some((r) => r.state === "running"), content: all.length ? table("Requests", ["Request", "Agent", "State", "Started", "Took", ""], all.map((r) => h("tr", {},
      cell("Request", [taskOf(to, r.request_id), r.error_message ? h("div.errortext", {}, line(r.error_message, 200)) : null, question(base, r, again, to)], { class: "grow" }),
      cell("Agent", h("a", { href: `#tasks?agent=${segment(r.agent_id)}&tenant=${base.split("/").at(-1)}` }, line(r.agent_id, 40))),
      cell("State", pill(line(r.state, 30), STATE_TONES[r.state] || "idle")),
      cell("Started", at(r.started_at)), cell("Took", r.completed_at ? (r.completed_at > r.started_at ? `${count(r.completed_at - r.started_at)} s` : "< 1 s") : "–"),
      cell("", r.completed_at ? button("Delete", async () => { if (await confirmed("Delete this request?", "Its task is deleted, with its log and those of the agents that worked for it.", "Delete it")) act(() => del(`${base}/requests/${segment(r.request_id)}`), again)(); }, { class: "small quiet" }) : button("Cancel", act(() => post(`${base}/requests/${segment(r.request_id)}/cancel`), again, "The request is being canceled."), { class: "small danger" })))))
      : empty("No requests", "Whatever is sent to an agent of this tenant appears here.") };
  });
}

function memory(base) {
  let query = "";
  const input = h("input", { type: "search", placeholder: "Search the memory", "aria-label": "Search the memory" });
  const found = panel(async (again) => {
    const { entries } = await get(`${base}/memory/entries`, { limit: 100, q: query || undefined });
    const { scratchpads } = await get(`${base}/memory`);
    const remove = (entry) => async () => {
      if (await confirmed("Delete this entry?", line(entry.title, 200), "Delete it")) act(() => del(`${base}/memory/entries/${entry.id}`), again)();
    };
    return { state: [entries, scratchpads], content: [
      entries.length ? table("Memory", ["Entry", "Type", "Changed", ""], entries.map((e) => h("tr", {},
        cell("Entry", h("details", {}, h("summary", {}, line(e.title, 160)), block(e.content, { first: 4000 })), { class: "grow" }),
        cell("Type", [pill(line(e.type, 30)), " ", e.valid_to ? pill("ended") : null]), cell("Changed", at(e.updated_at)),
        cell("", button("Delete", remove(e), { class: "small quiet" }))))) : empty(query ? "Nothing found" : "No entries", query ? "Try other words." : "Agents add entries with /mem."),
      list(scratchpads).length ? [h("h2", {}, "Scratchpads"), jsonTree(scratchpads, { open: 1 })] : null,
    ] };
  });
  input.addEventListener("input", debounce(() => { query = input.value.trim(); found.redraw(); }, 250));
  return h("div.stackview", {}, h("div.filters", { role: "search" }, input), found);
}

function fileTable(base, all, again) {
  const remove = (file) => async () => {
    if (await confirmed("Delete this file?", line(file.path, 200), "Delete it")) act(() => del(`${base}/artifacts/${file.id}`), again)();
  };
  return table("Files", ["File", "Type", "Size", "Changed", ""], all.map((f) => h("tr", {},
    cell("File", line(f.path, 160), { class: "grow" }), cell("Type", line(f.mime_type, 60)), cell("Size", bytes(f.size), { class: "num" }), cell("Changed", at(f.updated_at)),
    cell("", [h("a.button.small", { href: `api/${base}/artifacts/${f.id}/raw`, download: String(f.path).split("/").at(-1).replace(/[^\w. -]/g, "_") }, "Save"), " ", again ? button("Delete", remove(f), { class: "small quiet" }) : null], { class: "nowrap" }))));
}

function files(base) {
  return panel(async (again) => {
    const { artifacts } = await get(`${base}/artifacts`);
    return { state: artifacts, content: artifacts.length ? fileTable(base, artifacts, again) : empty("No files", "Agents store files in conversations with /write.") };
  });
}

function schedules(base, to) {
  const phrase = h("input", { type: "text", placeholder: "every day at 09:00 in Europe/Berlin", "aria-label": "When", title: "A phrase, or a cron expression such as 0 9 * * mon-fri, and a time zone if it is not the hub's", required: true });
  const message = h("input", { type: "text", placeholder: "What to ask", "aria-label": "What to ask", required: true });
  const agent = h("input", { type: "text", placeholder: "index", "aria-label": "Agent" });
  const found = panel(async (again) => {
    const { schedules: all } = await get(`${base}/schedules`);
    const { runs } = await get(`${base}/runs`);
    const remove = (s) => async () => {
      if (await confirmed("Delete this schedule?", line(s.message, 200), "Delete it")) act(() => del(`${base}/schedules/${s.id}`), again)();
    };
    const pause = (s) => act(() => patch(`${base}/schedules/${s.id}`, { status: s.status === "active" ? "paused" : "active" }), again);
    return { state: [all, runs], content: [
      all.length ? table("Schedules", ["What", "When", "Agent", "Next", "Runs", ""], all.map((s) => h("tr", {},
        cell("What", line(s.message, 160), { class: "grow" }), cell("When", line(s.schedule_phrase, 80)), cell("Agent", line(s.agent_id, 40)),
        cell("Next", s.status === "active" ? [at(s.next_fire_at, until), h("div.muted", {}, line(s.next_run, 40))] : pill(line(s.status, 20))), cell("Runs", count(s.run_count), { class: "num" }),
        cell("", [s.status === "completed" ? null : button(s.status === "active" ? "Pause" : "Resume", pause(s), { class: "small" }), " ", button("Delete", remove(s), { class: "small quiet" })], { class: "nowrap" })))) : empty("No schedules", "Say when, and what to ask."),
      runs.length ? [h("h2", {}, "Runs"), table("Runs", ["Run", "State", "Started"], runs.slice(0, 50).map((r) => h("tr", {}, cell("Run", [r.request_id ? taskOf(to, r.request_id) : h("span.muted", {}, "not started"), r.error_message ? h("div.errortext", {}, line(r.error_message, 200)) : r.result_summary ? h("div.small.muted", {}, line(r.result_summary, 200)) : null], { class: "grow" }), cell("State", pill(line(r.status, 30), STATE_TONES[r.status] || "idle")), cell("Started", at(r.started_at)))))] : null,
    ] };
  });
  const form = h("form.filters", { onsubmit: async (event) => {
    event.preventDefault();
    try {
      await post(`${base}/schedules`, { schedule: phrase.value, message: message.value, ...(agent.value ? { agent: agent.value } : {}) });
      phrase.value = message.value = "";
      toast("The work is scheduled.");
      found.redraw();
    } catch (error) { failure(error); }
  } }, phrase, message, agent, h("button.button.primary", { type: "submit" }, "Schedule"));
  return h("div.stackview", {}, form, found);
}

// -- usage ------------------------------------------------------------------------------------------------------

const money = (costs) => Object.entries(costs).filter(([, n]) => n).map(([unit, n]) => `${n.toFixed(n < 1 ? 4 : 2)} ${line(unit, 8)}`).join(", ");

function sums(rows, key) {
  const found = new Map();
  for (const row of rows) {
    const name = key(row);
    const sum = found.get(name) || { calls: 0, input: 0, output: 0, cached: 0, costs: {} };
    sum.calls += row.calls; sum.input += row.input_tokens; sum.output += row.output_tokens; sum.cached += row.cached_tokens;
    if (row.cost) sum.costs[row.currency || "?"] = (sum.costs[row.currency || "?"] || 0) + row.cost;
    found.set(name, sum);
  }
  return found;
}

function usage(path, byTenant) {
  return panel(async () => {
    const { usage: rows } = await get(path, { days: DAYS });
    if (!rows.length) return { state: rows, content: empty("No usage yet", `Tokens and money of models appear here, by day, for ${DAYS} days.`) };
    const names = byTenant ? Object.fromEntries((await get("hub/admin/tenants")).tenants.map((t) => [t.id, t.name])) : {};
    const days = sums(rows, (r) => r.day), all = sums(rows, () => "").get("");
    const most = Math.max(1, ...[...days.values()].map((d) => d.input + d.output));
    const first = new Date(Date.now() - (DAYS - 1) * 86_400_000);
    const dates = Array.from({ length: DAYS }, (_, i) => new Date(first.getTime() + i * 86_400_000).toISOString().slice(0, 10));
    const bars = h("div.daybars", { role: "img", "aria-label": `Tokens of each of the last ${DAYS} days` }, dates.map((day) => {
      const d = days.get(day) || { input: 0, output: 0, calls: 0, costs: {} };
      const bar = h("i", { title: `${day}: ${count(d.input)} tokens in, ${count(d.output)} out, ${plural(d.calls, "call")}${money(d.costs) ? ", " + money(d.costs) : ""}` });
      bar.style.height = `${Math.max(d.calls ? 3 : 0, Math.round((100 * (d.input + d.output)) / most))}%`;
      return bar;
    }));
    const split = JSON.stringify, groups = sums(rows, (r) => split([byTenant ? names[r.tenant_id] || r.tenant_id : "", r.agent, r.model]));
    const heads = [...(byTenant ? ["Tenant"] : []), "Agent", "Model", "Calls", "Tokens in", "Cached", "Tokens out", "Money"];
    return { state: rows, content: [
      h("div.strip", {}, [["Calls", count(all.calls)], ["Tokens in", count(all.input)], ["Tokens out", count(all.output)], ["Money", money(all.costs) || "none reported"]].map(([name, value]) => h("div", {}, h("div.small.muted", {}, name), h("strong", {}, value)))),
      bars, h("div.row.spread.small.muted", {}, h("span", {}, dates[0]), h("span", {}, dates.at(-1))),
      table("Usage", heads, [...groups].sort((a, b) => b[1].input + b[1].output - a[1].input - a[1].output).map(([key, s]) => {
        const [tenant, agent, model] = JSON.parse(key);
        return h("tr", {}, byTenant ? cell("Tenant", h("a", { href: `#hub/${segment(tenant)}` }, line(tenant, 60))) : null, cell("Agent", line(agent, 60), { class: "grow" }), cell("Model", h("code", {}, line(model, 60))),
          cell("Calls", count(s.calls), { class: "num" }), cell("Tokens in", count(s.input), { class: "num" }), cell("Cached", count(s.cached), { class: "num" }), cell("Tokens out", count(s.output), { class: "num" }), cell("Money", money(s.costs) || "–", { class: "nowrap" }));
      })),
    ] };
  });
}
