// One task: its whole log, live; what it was at any record; its steps, children and webhooks; and what an operator may do.

import { get, post } from "./api.js";
import { badge, block, button, clock, confirmed, copyButton, copyIcon, count, debounce, dict, duration, empty, failure, fill, FINAL, h, line, list, moment, pill, plural, segment, tabs, toast, WAITING, when } from "./dom.js";
import { jsonTree } from "./json.js";
import { attemptOf, diedBetween, recordList, TaskLog } from "./log.js";
import { partsText, partsView } from "./parts.js";
import { webhookTable } from "./webhooks.js";
import { ofTenant, whose } from "./tenant_choice.js";

const MOST_FOR_CHART = 5000;

export function taskView(there, me) {
  const key = there.rest[0] || "";
  const path = `tasks/${segment(key)}`;
  let row = null, selected = 0, pinned = false, full = null;

  const log = new TaskLog(key, {
    onchange(from, paged) {
      if (!pinned && log.last) selected = log.last;
      list.update(paged ? from - 1 : Math.max(0, from - 1));
      drawSlider();
      if (!pinned) list.mark();
      refreshSoon();
    },
    onrow(next) { row = { ...row, ...next }; drawHead(); showLive(); if (next.records !== full?.records || next.state !== full.state) loadTaskSoon(); },
    onstatus(state, error) { connection = [state, error]; showLive(); },
  });
  let connection = ["", null];
  function showLive() {
    const [state, error] = connection;
    live.textContent = { live: FINAL.has(row?.state) ? "" : "live", lost: "reconnecting …", refused: line(error?.message, 100) }[state] || "";
    live.className = `live ${state}`;
  }

  // -- head ----------------------------------------------------------------------------------------------------
  const head = h("div.taskhead");
  const live = h("span.live", { role: "status" });

  function drawHead() {
    if (!row) return;
    const busy = !FINAL.has(row.state);
    const lease = row.node ? [h("span.mono", {}, line(row.node, 24)), row.leaseExpires && Date.parse(row.leaseExpires) < Date.now() ? pill("lease expired", "bad") : null] : busy ? "no process" : "–";
    fill(head,
      h("nav.crumbs", { "aria-label": "Where you are" }, h("a", { href: "#tasks" }, "Tasks"), " / ", h("span.mono.ellipsis", {}, line(row.id, 60)), copyIcon(String(row.id), "the id of the task")),
      h("div.viewhead", {}, h("h1.ellipsis", { dir: "auto", title: line(row.text, 300) }, line(row.text, 90) || "Task"), badge(row.state), live,
        h("div.actions", {},
          me.features.includes("talk") && h("a.button", { href: `#chat/${segment(row.agent)}?task=${segment(key)}${ofTenant(row.tenant, "&")}` }, WAITING.has(row.state) ? "Answer in chat" : "Open in chat"),
          busy ? button("Cancel", cancel, { class: "danger" }) : null,
          row.state === "TASK_STATE_FAILED" ? button("Retry", retry, { class: "primary" }) : null,
          button("Fork here", fork, { title: "A new task whose log is a copy up to the chosen record" }))),
      h("dl.strip", {}, [
        ["Agent", h("a", { href: `#agents/${segment(row.agent)}${ofTenant(row.tenant)}` }, line(row.agent, 40))],
        ["Context", h("a.mono", { href: `#tasks?context=${segment(row.contextId)}`, title: line(row.contextId, 80) }, line(row.contextId, 13))],
        ["Created", h("span", { title: line(row.created, 40) }, moment(row.created))],
        [busy ? "Open for" : "Took", busy ? when(row.created, (t) => duration(Date.now() - Date.parse(t))) : duration(Date.parse(row.updated) - Date.parse(row.created))],
        ["Records", count(row.records)],
        ["Attempts", row.attempts > 1 ? pill(count(row.attempts), "wait") : count(row.attempts)],
        ["Node", lease],
        ...(whose(row) ? [[row.tenant ? "Tenant" : "Caller", line(whose(row), 40)]] : []),
      ].map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      row.question && WAITING.has(row.state) ? h("p.asks", { dir: "auto" }, h("strong", {}, "Waits for an answer: "), line(row.question, 400)) : null);
  }

  async function cancel() {
    if (!(await confirmed("Cancel this task?", "The agent is interrupted. A canceled task never runs again.", "Cancel the task"))) return;
    try { row = { ...row, ...(await post(path + "/cancel")) }; drawHead(); } catch (error) { failure(error); }
  }
  async function retry() {
    try { const made = await post(path + "/retry"); toast("The task runs again."); if (made?.key && made.key !== key) location.hash = `task/${segment(made.key)}`; } catch (error) { failure(error); }
  }
  async function fork() {
    const at = selected || log.last;
    try {
      const made = await post(path + "/fork", { record: at });
      toast(`Forked at record ${at}.`);
      location.hash = `task/${segment(made.key)}`;
    } catch (error) { failure(error); }
  }

  // -- which record --------------------------------------------------------------------------------------------
  const slider = h("input#slider", { type: "range", min: "1", max: "1", value: "1", "aria-label": "Show the task as it was at this record", oninput: () => choose(Number(slider.value)) });
  const where = h("output.where", { for: "slider" });
  const liveButton = button("Live", () => { pinned = false; choose(log.last, true); }, { class: "small", "aria-pressed": "true" });
  const bar = h("div.sliderbar", {},
    button("◀", () => choose(Math.max(1, selected - 1)), { class: "small", "aria-label": "Record before" }), slider,
    button("▶", () => choose(Math.min(log.last, selected + 1)), { class: "small", "aria-label": "Next record" }), where, liveButton);

  function choose(seq, goLive = false) {
    if (!seq) return;
    selected = seq;
    pinned = !goLive;
    drawSlider();
    list.mark();
    list.scrollTo(seq - 1);
    if (goLive) list.stick(true);
    refresh();
  }

  function drawSlider() {
    slider.max = String(Math.max(1, log.last));
    slider.value = String(selected);
    where.textContent = log.last ? `Record ${count(selected)} of ${count(log.last)}` : "No records";
    liveButton.setAttribute("aria-pressed", pinned ? "false" : "true");
    slider.setAttribute("aria-valuetext", where.textContent);
  }

  const list = recordList(log, { selected: () => selected, onselect: (seq) => { choose(seq); if (narrow()) panels.select("record"); } });
  const narrow = () => matchMedia("(max-width: 700px)").matches;

  // -- panels --------------------------------------------------------------------------------------------------
  const was = h("div.was"), recordPanel = h("div"), asPanel = h("div"), steps = h("div"), children = h("div"), hooks = h("div"), whole = h("div");
  let panels = null;
  panels = tabs([
    ["was", "As it was", () => was],
    ["record", "Record", () => recordPanel],
    ["as", "Show as", () => asPanel],
    ["steps", "Steps", () => steps],
    ["children", "Children", () => children],
    ["webhooks", "Webhooks", () => hooks],
    ["json", "JSON", () => whole],
  ], { label: "What to show of the task", onselect: () => refresh() });

  let asked = null, asSeq = 0;
  function refresh() {
    if (!panels || !selected) return;
    const tab = panels.current();
    if (tab === "was" || tab === "json") showFold(tab);
    else if (tab === "record") showRecord();
    else if (tab === "as") showAs();
    else if (tab === "steps") fill(steps, stepsChart(log, choose));
    else if (tab === "children") showChildren();
    else if (tab === "webhooks") showWebhooks();
  }
  const refreshSoon = throttle(refresh, 250);

  async function showFold(tab) {
    const seq = selected;
    asked?.abort();
    asked = new AbortController();
    try {
      const task = await get(`${path}/at/${seq}`, {}, { signal: asked.signal });
      if (seq !== selected) return;
      if (tab === "json") fill(whole, jsonTree(task, { open: 2 }));
      else fill(was, foldView(task, seq, log));
      was.dataset.seq = seq;
    } catch (error) {
      if (error.name !== "AbortError" && error.status) fill(tab === "json" ? whole : was, empty("Not to be read", line(error.message, 300)));
    }
  }

  async function showRecord() {
    const record = log.records.get(selected);
    if (!record) return fill(recordPanel, h("p.muted", {}, "…"));
    const note = h("div.row");
    fill(recordPanel, h("div.detail", {},
      h("div.row.wrap", {}, h("strong", {}, `Record ${record.seq}`), pill(line(record.kind, 20)), record.private ? pill("private", "", "Only operators see it") : pill("peers see it", "good"),
        pill(`attempt ${count(record.attempt)}`), h("span.muted", {}, clock(record.time))),
      h("p", { dir: "auto" }, line(record.summary, 2000)), content(record), note, jsonTree(record.data, { open: 2 })));
    if (record.cut) {
      note.append(h("span.muted", {}, `${count(record.cut)} characters are left out.`));
      note.append(button("Read the whole record", async () => {
        try { const all = await get(`${path}/records/${record.seq}`); if (selected === record.seq) fill(recordPanel, h("div.detail", {}, content(all), jsonTree(all.data, { open: 2 }))); } catch (error) { failure(error); }
      }, { class: "small" }));
    }
  }

  async function showAs() {
    const seq = selected;
    if (asSeq === seq) return;
    try {
      const { views } = await get(`${path}/records/${seq}/as`);
      if (seq !== selected) return;
      asSeq = seq;
      fill(asPanel, views.length ? dialectViews(views, seq) : empty("Nothing on the wire", `Record ${seq} is private: no version of A2A has an event for it.`));
    } catch (error) {
      fill(asPanel, empty("Not to be shown", line(error.message, 300)));
    }
  }

  let childrenDrawn = "";
  function showChildren() {
    const found = full?.children || [], drawn = JSON.stringify([found, full?.parent]);
    if (drawn === childrenDrawn) return; // what somebody opened stays open
    childrenDrawn = drawn;
    fill(children, full?.parent ? h("p", {}, `A copy, up to record ${count(full.parent.record)}, of `, h("a", { href: `#task/${segment(full.parent.key)}` }, line(full.parent.taskId, 60))) : null,
      found.length ? h("ul.tree", {}, found.map((child) => childNode(child, key))) : empty("No children", "This task has called no other agent."));
  }

  async function showWebhooks() {
    try {
      const { webhooks } = await get("webhooks", { task: key });
      fill(hooks, webhooks.length ? webhookTable(webhooks, showWebhooks) : empty("No webhooks", "Nobody asked for push notifications of this task."));
    } catch (error) { fill(hooks, empty("Not to be read", line(error.message, 300))); }
  }

  async function loadTask() {
    try {
      full = await get(path, { fold: "0" });
      const { task, webhooks, children: kids, parent, ...rest } = full;
      row = { ...row, ...rest };
      drawHead();
      panels.rename("children", kids?.length ? `Children ${kids.length}` : "Children");
      panels.rename("webhooks", webhooks?.length ? `Webhooks ${webhooks.length}` : "Webhooks");
      if (panels.current() === "children") showChildren();
    } catch (error) {
      if (!full && error.status) fill(node, empty(error.status === 404 ? "No such task" : "The task could not be read", line(error.message, 300), h("a.button", { href: "#tasks" }, "All tasks")));
    }
  }
  const loadTaskSoon = debounce(loadTask, 300);

  const node = h("div.view.taskview", {}, head, bar, h("div.split", {}, h("section.pane.loglist", { "aria-label": "Log" }, list.node), h("section.pane", { "aria-label": "Details" }, panels)));
  fill(head, h("p.muted", {}, "Reading the task …"));
  drawSlider();
  const loaded = loadTask();
  (async function open() {
    await loaded;
    try { await log.open(full); } catch (error) { if (!log.closed && !error.status) setTimeout(open, 1000); }
  })();
  const back = () => loadTask();
  window.addEventListener("serverback", back);
  return {
    title: "Task", node,
    update: (next) => next.rest[0] === key,
    close() { log.close(); window.removeEventListener("serverback", back); },
  };
}

function throttle(work, ms) {
  let timer = null;
  return () => { timer ??= setTimeout(() => { timer = null; work(); }, ms); };
}

/** The text, file or data of a public record, as its readers see it. */
function content(record) {
  const data = record.data || {};
  const event = data.statusUpdate || data.artifactUpdate || data;
  const parts = event.status?.message?.parts || event.artifact?.parts || event.message?.parts || event.parts;
  return Array.isArray(parts) ? h("div.bubble", {}, partsView(parts)) : null;
}

/** A task at one record: its state, what it said, and its artifacts. */
function foldView(task, seq, log) {
  const record = log.records.get(seq);
  const history = Array.isArray(task.history) ? task.history : [];
  const artifacts = Array.isArray(task.artifacts) ? task.artifacts : [];
  const said = task.status?.message;
  return [
    h("div.row.wrap", {}, badge(task.status?.state), record ? pill(`attempt ${count(record.attempt)}`) : null, h("span.muted", {}, record ? clock(record.time) : "")),
    said ? h("div.bubble.agent", {}, partsView(said.parts)) : null,
    artifacts.map((a) => h("section.artifact", {}, h("h3", {}, line(a.name || a.artifactId || "artifact", 80)), a.description ? h("p.muted", {}, line(a.description, 300)) : null, partsView(a.parts))),
    artifacts.length ? null : h("p.muted", {}, "No artifacts yet."),
    history.length ? h("details", { open: history.length < 6 }, h("summary", {}, plural(history.length, "message")), history.slice(-200).map((m) =>
      h("div.bubble", { class: m.role === "ROLE_USER" ? "user" : "agent" }, partsView(m.parts)))) : null,
  ];
}

let chosenDialect = "";

function dialectViews(views, seq) {
  const names = [...new Set(views.map((v) => v.dialect))];
  return h("div", {}, h("p.muted", {}, `Record ${seq} as ${plural(names.length, "version")} of A2A write it.`),
    tabs(names.map((name) => [name, line(name, 20), () => h("div.views", {}, views.filter((v) => v.dialect === name).map((v) =>
      h("article.wireview", {}, h("div.codehead", {}, h("strong", {}, line(v.binding, 30)), h("span.muted", {}, line(v.contentType, 60)), copyButton(String(v.text))), block(v.text, { tag: "pre.code" }))))]),
    { label: "Versions of A2A", selected: chosenDialect, onselect: (name) => (chosenDialect = name) }));
}

/** A task that this one began elsewhere; it can be opened, and its children as well. */
function childNode(child, parent) {
  const body = h("div.treebody");
  const details = h("details", {
    ontoggle: async () => {
      if (!details.open || body.childElementCount) return;
      fill(body, h("p.muted", {}, "…"));
      try {
        if (!child.key) return fill(body, elsewhere(child, await get(`tasks/${segment(parent)}/children/${segment(child.taskId)}`)));
        const task = await get(`tasks/${segment(child.key)}`);
        fill(body, h("div.row.wrap", {}, badge(task.state), h("span", { dir: "auto" }, line(task.text, 100)), h("a.button.small", { href: `#task/${segment(child.key)}` }, "Open")),
          h("p.muted", { dir: "auto" }, line(partsText(task.task?.artifacts?.flatMap((a) => a.parts || []) || []), 200)),
          task.children?.length ? h("ul.tree", {}, task.children.map((each) => childNode(each, child.key))) : null);
      } catch (error) { fill(body, h("p.error", {}, line(error.message, 200)), child.key ? null : whereIs(child)); }
    },
  }, h("summary", {}, h("strong", {}, line(child.agent || child.url, 80)), " ", h("span.mono.muted.small", {}, line(child.taskId, 40)), child.seq ? h("span.muted.small", {}, ` record ${count(child.seq)}`) : null), body);
  return h("li", {}, details);
}

const whereIs = (child) => h("div.row.wrap", {}, h("span.muted", {}, "At another server: "), h("code", {}, line(child.url || child.agent, 120)),
  child.url ? h("a.button.small", { href: `#inspect?url=${segment(child.url)}` }, "Inspect") : null);

/** A task of another server, as that server shows it to the agent that began it. */
function elsewhere(child, task) {
  return [h("div.row.wrap", {}, badge(dict(task.status).state), h("span", { dir: "auto" }, line(partsText(list(dict(dict(task.status).message).parts)), 200))), whereIs(child),
    h("p.muted", { dir: "auto" }, line(partsText(list(task.artifacts).flatMap((a) => list(dict(a).parts))), 400)),
    h("details", {}, h("summary", {}, "The task as JSON"), jsonTree(task, { open: 1 }))];
}

// -- steps over time --------------------------------------------------------------------------------------------

/** Steps, calls and questions as bars; the attempts above them, and the time in which no process ran. */
export function stepsChart(log, choose) {
  if (log.last > MOST_FOR_CHART || !log.last) return empty("No chart", log.last ? `${count(log.last)} records are too many for one picture. The list beside it has them all.` : "No records yet.");
  if (!log.complete) { log.want(1, log.last); return h("p.muted", {}, "Reading the whole log …"); }
  const records = log.list();
  const start = log.timeOf(records[0].seq), end = Math.max(log.timeOf(records.at(-1).seq), start + 1);
  const at = (time) => (100 * (time - start)) / (end - start);
  const place = (node, from, to) => { node.style.left = `${at(from)}%`; node.style.width = `${Math.max(0.4, at(to) - at(from))}%`; return node; };
  const attempts = [], rows = [], gaps = [];
  let before = null;
  for (const record of records) {
    const time = log.timeOf(record.seq);
    const died = diedBetween(before, record);
    if (!attempts.length || died) {
      if (before) gaps.push([log.timeOf(before.seq), time]);
      attempts.push({ n: attemptOf(record), from: time, to: time });
    }
    attempts.at(-1).to = time;
    const data = record.data || {};
    if (record.kind === "step") {
      const took = typeof data.took === "number" && data.took > 0 ? data.took * 1000 : null;
      const answer = Boolean(data.mail);
      rows.push({ record, name: data.key || "step", from: took === null ? (before ? log.timeOf(before.seq) : time) : time - took, to: time, exact: took !== null, tone: answer ? "wait" : "busy",
        result: answer ? "answered" : data.value === undefined ? "" : typeof data.value === "string" ? data.value : JSON.stringify(data.value) });
    } else if (record.kind === "ask") {
      const answer = records.find((r) => r.seq > record.seq && r.kind === "message");
      rows.push({ record, name: "question", from: time, to: answer ? log.timeOf(answer.seq) : end, exact: true, tone: "wait", result: record.summary });
    } else if (record.kind === "child") {
      rows.push({ record, name: `call ${data.key || ""}`, from: time, to: time, exact: true, tone: "good", result: `${data.peer || ""} ${data.task || ""}` });
    }
    before = record;
  }
  const lane = (children) => h("div.lane", {}, gaps.map(([from, to]) => place(h("div.gap", { title: `No process for ${duration(to - from)}` }), from, to)), children);
  return h("div.chart", {},
    h("div.chartrow.headrow", {}, h("div.chartname", {}, plural(attempts.length, "attempt")),
      lane(attempts.map((a) => place(h("div.bar.attempt", { title: `attempt ${a.n}: ${duration(a.to - a.from)}` }, `attempt ${a.n}`), a.from, a.to))), h("div.chartend", {}, duration(end - start))),
    gaps.map(([from, to]) => h("p.gapnote", {}, `A process ended after ${duration(from - start)}. The next one continued ${duration(to - from)} later.`)),
    rows.length ? null : h("p.muted", {}, "No steps, calls or questions so far."),
    rows.map((r) => h("button.chartrow", { type: "button", onclick: () => choose(r.record.seq), title: line(r.result, 400) },
      h("div.chartname", {}, h("span.seq", {}, r.record.seq), " ", line(r.name, 60)), lane(place(h(`div.bar.${r.tone}`), r.from, r.to)), h("div.chartend", {}, `${r.exact ? "" : "≤ "}${duration(r.to - r.from)}`),
      h("div.chartresult.mono", { dir: "auto" }, line(r.result, 160)))));
}
