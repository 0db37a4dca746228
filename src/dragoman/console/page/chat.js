// Chat with an agent: what it says as it says it, questions as forms, files both ways, and beside it every event and byte.

import { converse, get, post } from "./api.js";
import { badge, block, button, bytes, clock, copyButton, count, dialog, dict, eachFrame, empty, failure, fill, FINAL, h, icon, iconButton, line, list, pill, plural, segment, stateName, tabs, toast, WAITING } from "./dom.js";
import { eventOf, Fold } from "./fold.js";
import { jsonTree } from "./json.js";
import { PUBLIC, recordList, TaskLog } from "./log.js";
import { filePart, partsText, partsView } from "./parts.js";
import { isYesNo, questionsIn, schemaForm, schemaOfAll } from "./schema.js";
import { choosesTenant, ofTenant, tenantNames, tenantSelect } from "./tenant_choice.js";

const MAX_FILE = 20 << 20;
const MAX_SIDE_ROWS = 2000;
const MAIL = new Set(["message", "cancel"]);

const conversations = new Map();
const drafts = new Map();

/** Another view has a message ready: it is put into the agent's chat, and sent if it says so. */
export function prepareMessage(agent, draft) {
  drafts.set(agent, draft);
}

export function chatView(there, me) {
  // an operator of a hub talks to the agents of one tenant
  const ofHub = choosesTenant(me);
  const body = h("div.chatbody");
  const picker = h("select", { "aria-label": "Agent", onchange: () => go(picker.value) });
  const tenants = tenantSelect((value) => go("", value));
  const node = h("div.view.chatview", {}, h("div.viewhead", {}, h("h1.offscreen", {}, "Chat"), tenants, picker, h("span.grow"),
    button("New conversation", () => { conversations.get(name(picker.value))?.close(); conversations.delete(name(picker.value)); show(picker.value); }, { class: "quiet" })), body);
  let agents = [], wantedTask = there.query.get("task"), tenant = ofHub ? there.query.get("tenant") || "" : "";

  const name = (id) => `${tenant}/${id}`;
  function go(id, of = tenant) {
    location.hash = `chat/${segment(id)}${ofTenant(of)}`;
  }

  function show(id) {
    const agent = agents.find((a) => a.id === id);
    if (!agent) return fill(body, empty("No such agent", line(id, 100)));
    picker.value = id;
    let talk = conversations.get(name(id));
    if (!talk || wantedTask) { talk?.close(); talk = new Conversation({ agent, tenant }); conversations.set(name(id), talk); }
    talk.agent = agent;
    for (const other of conversations.values()) if (other !== talk) other.hide();
    fill(body, talk.node);
    talk.log?.follow();
    if (wantedTask) talk.openTask(wantedTask).catch(failure);
    wantedTask = null;
    const draft = drafts.get(id);
    drafts.delete(id);
    if (draft) talk.draft(draft);
    talk.focus();
  }

  async function load(id) {
    try {
      if (ofHub) {
        const names = await tenantNames();
        if (!names.length) return fill(body, empty("No tenants", "Agents of a hub work for a tenant.", h("a.button", { href: "#hub" }, "Create one")));
        if (!names.includes(tenant)) tenant = names[0];
        tenants.show(names, tenant);
      }
      agents = (await get("agents", { tenant: ofHub ? tenant : "" })).agents;
    } catch (error) { return fill(body, empty("The agents could not be read", line(error.message, 300))); }
    if (!agents.length) return fill(body, empty("No agents", "This server serves no agent yet."));
    fill(picker, agents.map((a) => h("option", { value: a.id }, line(a.name, 80))));
    show(id || agents[0].id);
  }

  load(there.rest[0]);
  return {
    title: "Chat", node,
    close() { for (const talk of conversations.values()) talk.hide(); },
    update(next) {
      if (!agents.length) return false;
      wantedTask = next.query.get("task");
      const other = next.query.get("tenant") || tenant;
      if (ofHub && other !== tenant) { tenant = other; load(next.rest[0]); } else show(next.rest[0] || agents[0].id);
      return true;
    },
  };
}

/** One conversation with one agent: `{agent}` of this server, or `{url, card, credentials}` of any other. */
export class Conversation {
  constructor({ agent = null, tenant = "", url = null, card = null, credentials = () => null, choice = () => ({}) }) {
    Object.assign(this, { agent, tenant, url, credentials, choice });
    this.card = dict(card || agent?.card);
    this.context = null;
    this.task = null; // waits for an answer
    this.running = null;
    this.files = [];
    this.sent = null;
    this.log = null;
    this.events = [];
    this.wire = [];
    this.build();
  }

  /** The key of a task of this server, whoever began it. */
  keyOf(task) { return this.agent && task && this.logTask === task ? this.log?.key ?? null : null; }
  get target() { return this.agent ? { agent: this.agent.id, ...(this.tenant ? { tenant: this.tenant } : {}) } : { url: this.url }; }
  get skills() { return list(this.agent ? this.agent.skills : this.card.skills).map(dict); }

  // -- the page ------------------------------------------------------------------------------------------------

  build() {
    this.transcript = h("div.transcript", { role: "log", "aria-label": "Conversation", "aria-live": "polite", tabindex: "0" });
    this.hello = this.greeting();
    this.transcript.append(this.hello);
    this.input = h("textarea", {
      rows: "1", placeholder: "Message", "aria-label": "Message",
      oninput: () => this.grow(),
      onkeydown: (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.submit(); } },
      onpaste: (event) => { if (event.clipboardData?.files.length) { event.preventDefault(); this.addFiles(event.clipboardData.files); } },
    });
    this.chooser = h("input.offscreen", { type: "file", multiple: true, "aria-label": "Files to send", tabindex: "-1", onchange: () => { this.addFiles(this.chooser.files); this.chooser.value = ""; } });
    this.chosen = h("div.chosen");
    this.skill = h("select.skillchoice", { "aria-label": "Skill" }, h("option", { value: "" }, this.skills.length > 1 ? "Any skill" : "Skill"), this.skills.map((s) => h("option", { value: String(s.id) }, line(s.name || s.id, 60))));
    this.skill.hidden = this.skills.length < 2;
    this.sendButton = h("button.button.primary.send", { type: "submit", "aria-label": "Send" }, icon("send"), h("span", {}, "Send"));
    this.cancelButton = button("Cancel", () => this.cancel(), { class: "danger", hidden: true });
    this.where = h("div.chatstate", { role: "status" });
    const form = h("form.composer", {
      onsubmit: (event) => { event.preventDefault(); this.submit(); },
      ondragover: (event) => event.preventDefault(),
      ondrop: (event) => { event.preventDefault(); this.addFiles(event.dataTransfer.files); },
    }, this.chosen, this.input, h("div.row.wrap", {}, iconButton("file", "Attach files", () => this.chooser.click()), this.chooser, this.skill, button("Copy as …", () => this.copyAs(), { class: "quiet small" }), h("span.grow"), this.cancelButton, this.sendButton));
    this.side = this.buildSide();
    this.node = h("div.chat", {}, h("section.talk", { "aria-label": "Conversation" }, this.transcript, this.where, form), h("section.side2", { "aria-label": "Events and bytes" }, this.side));
    this.showState();
  }

  greeting() {
    const examples = this.skills.flatMap((s) => list(s.examples).map((e) => [s, e])).slice(0, 5);
    return h("div.greeting", {}, h("h2", {}, line(this.agent?.name || this.card.name || this.url, 80)), h("p.muted", {}, line(this.agent?.description ?? this.card.description, 300)),
      examples.length ? h("div.row.wrap.center", {}, examples.map(([s, e]) => button(line(e, 100), () => this.draft({ text: String(e), skill: this.skills.length > 1 ? s.id : undefined }), { class: "small quiet" }))) : null);
  }

  buildSide() {
    this.logBody = h("div.fillheight", {}, h("p.muted.pad", {}, "Every record of the task's log appears here, as it is written."));
    this.eventList = h("ol.events", { "aria-label": "Events" });
    this.wireList = h("ol.wire", { "aria-label": "Bytes" });
    const entries = [["events", "Events", () => h("div.scroll", {}, this.eventList)], ["wire", "Bytes", () => h("div.scroll", {}, this.wireList)]];
    if (this.agent) entries.unshift(["log", "Log", () => this.logBody]);
    return tabs(entries, { label: "What happens beside the conversation" });
  }

  /** Nobody looks: the log is read again when somebody does, unless it is what the answer comes from. */
  hide() { if (!this.running?.recovering) this.log?.pause(); }

  /** Follow nothing of it any longer. The task goes on. */
  close() {
    this.running?.leave();
    this.log?.close();
  }

  focus() { if (matchMedia("(min-width: 700px)").matches) this.input.focus(); }
  grow() { this.input.style.height = "auto"; this.input.style.height = `${Math.min(this.input.scrollHeight + 2, 200)}px`; }
  stick() { const t = this.transcript; if (t.scrollHeight - t.scrollTop - t.clientHeight < 160) requestAnimationFrame(() => (t.scrollTop = t.scrollHeight)); }

  draft({ text, data, files, skill, send }) {
    if (skill && [...this.skill.options].some((o) => o.value === skill)) this.skill.value = skill;
    if (data !== undefined || files?.length) {
      const parts = [...(text ? [{ text }] : []), ...(data !== undefined && !(data && typeof data === "object" && !Object.keys(data).length && files?.length) ? [typeof data === "string" ? { text: data } : { data }] : []), ...(files || [])];
      if (send) return void this.send(parts, { skill });
    }
    if (text) { this.input.value = text; this.grow(); }
    this.focus();
  }

  async addFiles(files) {
    for (const file of files) {
      if (file.size > MAX_FILE) { toast(`${file.name} has ${bytes(file.size)}; at most ${bytes(MAX_FILE)} can be sent.`, "bad"); continue; }
      this.files.push({ file, part: await filePart(file) });
    }
    this.drawFiles();
  }

  drawFiles() {
    fill(this.chosen, this.files.map((f) => h("span.chosenfile", {}, icon("file"), h("bdi", {}, line(f.file.name, 60)), h("span.muted", {}, bytes(f.file.size)),
      iconButton("close", `Remove ${line(f.file.name, 60)}`, () => { this.files = this.files.filter((x) => x !== f); this.drawFiles(); }))));
  }

  showState() {
    const busy = Boolean(this.running);
    this.cancelButton.hidden = !(busy || this.task) || !(this.running?.fold.taskId || this.task);
    this.sendButton.disabled = this.busy;
    this.input.placeholder = this.task ? "Your answer" : "Message";
    fill(this.where,
      busy ? [h("span.spinner", { "aria-hidden": "true" }), this.running.lost ? "Connection lost; the task is stored and goes on." : this.running.fold.state ? stateName(this.running.fold.state) : "sending …"] : null,
      this.context ? h("span.context", {}, "context ", this.agent ? h("a.mono", { href: `#tasks?context=${segment(this.context)}` }, line(this.context, 13)) : h("span.mono", {}, line(this.context, 13)),
        " ", h("button.link.small", { type: "button", onclick: () => { this.context = null; this.task = null; this.showState(); this.bubbleNote("A new conversation begins: the agent remembers nothing of the one above."); } }, "forget")) : null);
  }

  bubbleNote(text) { this.transcript.append(h("p.divider", {}, text)); this.stick(); }

  // -- sending -------------------------------------------------------------------------------------------------

  submit() {
    const text = this.input.value;
    const parts = [...(text.trim() ? [{ text }] : []), ...this.files.map((f) => f.part)];
    if (!parts.length || this.busy) return;
    this.input.value = "";
    this.files = [];
    this.drawFiles();
    this.grow();
    this.send(parts, { skill: this.skill.value });
  }

  /** A turn runs, and no answer of ours is what it waits for. */
  get busy() { return Boolean(this.running) && !this.running.recovering && !this.running.fold.waiting; }

  async send(parts, { skill = "" } = {}) {
    this.hello.remove();
    const last_seq = (this.agent && this.task && this.asker?.fold.last) || null; // the answer is to the question that is shown
    this.closeQuestion();
    this.running?.leave();
    const message = { role: "ROLE_USER", parts };
    const body = { ...this.target, message, task: this.task, key: this.keyOf(this.task), context: this.context, skill: skill || null, last_seq, credentials: this.credentials(), ...this.choice() };
    this.sent = body;
    this.transcript.append(h("div.bubble.user", {}, partsView(parts, { plain: true })));
    this.transcript.scrollTop = this.transcript.scrollHeight;
    const turn = new AnswerView(this);
    this.running = turn;
    this.transcript.append(turn.node);
    this.stick();
    const followed = this.task;
    this.task = null;
    this.showState();
    try {
      for await (const [event, data] of converse("talk", body, turn.stop.signal)) this.take(turn, event, data);
      if (!turn.ended) this.recover(turn, followed);
    } catch (error) {
      if (turn.stop.signal.aborted) return;
      if (error.code === "offline" || error.name === "TypeError") return this.recover(turn, followed);
      turn.fail(error.message);
      this.end(turn);
    }
  }

  take(turn, event, data) {
    if (event === "event") {
      this.addEvent(data);
      if (turn.fold.apply(data)) { turn.draw(); this.identify(turn); this.waitsInside(turn); }
    } else if (event === "wire") this.addWire(data);
    else if (event === "chosen") { this.addChosen(data); }
    else if (event === "error") { turn.fail(data.message); turn.ended = true; this.end(turn); }
    else if (event === "end") {
      turn.ended = true;
      turn.fold.identify(data.task, data.context);
      if (data.state && data.state !== turn.fold.state) turn.fold.state = data.state;
      if (data.key) this.followLog(data.key);
      this.end(turn);
    }
  }

  /** A stream may go on while the agent waits for an authorisation. */
  waitsInside(turn) {
    const waits = turn.fold.state === "TASK_STATE_AUTH_REQUIRED";
    if (waits && !this.question) { this.task = turn.fold.taskId; this.ask(turn.fold); }
    else if (!waits && this.question && this.running === turn) { this.task = null; this.closeQuestion(); }
  }

  identify(turn) {
    const { taskId, contextId } = turn.fold;
    if (contextId && contextId !== this.context) { this.context = contextId; }
    this.showState();
    if (this.agent && taskId && this.logTask !== taskId) { this.logTask = taskId; this.findLog(taskId, contextId); }
  }

  /** The log of the task beside the chat, also of a task that began here a moment ago. */
  async findLog(taskId, contextId) {
    for (let n = 0; n < 5 && this.logTask === taskId; n++) {
      try {
        const { tasks } = await get("tasks", { context: contextId, agent: this.agent.id, limit: 50 });
        const row = tasks.find((t) => t.id === taskId);
        if (row) return void this.followLog(row.key);
      } catch { /* again below */ }
      await new Promise((resolve) => setTimeout(resolve, 200 * 2 ** n));
    }
  }

  followLog(key) {
    if (this.log?.key === key) return;
    this.log?.close();
    const log = new TaskLog(key, {
      onchange: (from) => { rows.update(Math.max(0, from - 1)); this.side.rename("log", `Log ${count(log.last)}`); },
      onrecord: (record) => this.recordArrived(log, record),
      onstatus: (state) => { status.textContent = state === "lost" ? "reconnecting …" : ""; },
    });
    let selected = 0;
    const detail = h("div.logdetail", { hidden: true });
    const status = h("span.live.lost", { role: "status" });
    const rows = recordList(log, {
      compact: true, selected: () => selected,
      onselect: (seq) => { selected = selected === seq ? 0 : seq; rows.mark(); detail.hidden = !selected; const record = log.records.get(seq); fill(detail, selected && record ? jsonTree(record.data, { open: 2 }) : null); },
    });
    fill(this.logBody, h("div.loghead", {}, h("a", { href: `#task/${segment(key)}` }, "Open the task"), status), rows.node, detail);
    this.log = log;
    log.open().then(() => { for (const record of log.list()) this.recordArrived(log, record); }).catch(() => {});
  }

  recordArrived(log, record) {
    if (log !== this.log) return;
    if (this.question && !this.running && this.task === this.logTask && MAIL.has(record.kind) && record.seq > this.asker?.fold.last) this.answeredElsewhere(record);
    const turn = this.running;
    if (turn?.recovering && PUBLIC.has(record.kind)) {
      const event = eventOf(record);
      if (event && turn.fold.apply(event)) {
        this.addEvent(event);
        turn.draw();
        if (turn.fold.settled || event.message) { turn.ended = true; this.end(turn); }
      }
    }
  }

  /** The stream broke. A task of this server goes on in its log; of another agent's task only its id is known. */
  async recover(turn, followed) {
    const taskId = turn.fold.taskId || followed;
    if (!this.agent || !taskId) {
      turn.fail(taskId ? `The connection was lost. Task ${taskId} may go on at the agent.` : "The connection was lost before the agent answered.");
      const { message } = this.sent;
      turn.add(button("Send again", () => { this.task = followed; this.send(message.parts, { skill: this.sent.skill || "" }); }, { class: "small" }));
      return this.end(turn);
    }
    turn.recovering = turn.lost = true;
    this.log?.follow();
    this.showState();
    while (this.running === turn && this.log?.key === undefined) {
      await this.findLog(taskId, turn.fold.contextId || this.context);
      if (this.log) break;
      this.logTask = taskId;
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
    for (const record of this.log?.list() || []) this.recordArrived(this.log, record);
  }

  end(turn) {
    if (turn.done) return;
    turn.done = true;
    if (this.running === turn) this.running = null;
    turn.finish();
    const { fold } = turn;
    if (fold.contextId) this.context = fold.contextId;
    if (fold.waiting) {
      this.task = fold.taskId;
      this.closeQuestion();
      this.ask(fold);
      this.asker = turn;
    }
    this.showState();
    this.stick();
  }

  /** Somebody else answered the question, on another page or with another program: the answer is shown, and what comes after it. */
  answeredElsewhere(record) {
    this.closeQuestion();
    this.task = null;
    this.bubbleNote("Answered elsewhere.");
    if (record.kind === "message") this.transcript.append(h("div.bubble.user", {}, partsView(dict(record.data).parts, { plain: true })));
    const turn = new AnswerView(this);
    turn.fold.last = record.seq;
    turn.fold.identify(this.logTask, this.context);
    turn.recovering = true;
    this.running = turn;
    this.transcript.append(turn.node);
    this.showState();
    this.stick();
  }

  async cancel() {
    const task = this.running?.fold.taskId || this.task;
    if (!task) return;
    try {
      await post("talk/cancel", { ...this.target, task, key: this.keyOf(task), credentials: this.credentials() });
      if (!this.running) {
        this.task = null;
        this.closeQuestion("canceled");
        this.bubbleNote("The task is canceled.");
        this.showState();
      }
    } catch (error) { failure(error); }
  }

  // -- questions -----------------------------------------------------------------------------------------------

  /** The question is over: the answer that asked it says so. */
  closeQuestion(word = "answered") {
    this.question?.remove();
    this.asker?.answered(word);
    this.question = this.asker = null;
  }

  ask(fold) {
    const mine = (this.question = h("div.question", { role: "group", "aria-label": "The agent asks" }));
    this.transcript.append(mine);
    const message = fold.status?.message;
    if (fold.state === "TASK_STATE_AUTH_REQUIRED") {
      mine.append(h("p", {}, icon("key"), " The agent needs an authorisation before it goes on. Do what it says, then continue."),
        h("div.row", {}, button("It is done", () => this.send([{ text: "done" }]), { class: "primary" })));
      return;
    }
    const questions = questionsIn(message);
    const { schema, approval } = questions.length > 1 ? { schema: schemaOfAll(questions) } : questions[0] || {};
    const yesNo = (yes = "Yes", no = "No", comment = null) => h("div.row.wrap", {}, button(yes, () => this.send([{ text: "yes" }]), { class: "primary" }),
      button(no, () => this.send([comment?.value ? { data: { approved: false, comment: comment.value } } : { text: "no" }])), comment);
    if (approval) return void mine.append(yesNo("Approve", "Refuse", h("input", { type: "text", placeholder: "Why not", "aria-label": "Why not" })));
    if (schema && isYesNo(schema)) return void mine.append(yesNo());
    if (Array.isArray(schema?.enum) && schema.enum.length <= 8) {
      return void mine.append(h("div.row.wrap", {}, schema.enum.map((v) => button(line(String(v), 80), () => this.send([{ text: String(v) }])))));
    }
    if (schema && !(schema.type === "string" && !schema.format)) {
      const form = schemaForm(schema, { name: "Answer" });
      const said = h("p.error", { role: "alert" });
      mine.append(h("form", {
        onsubmit: async (event) => {
          event.preventDefault();
          said.textContent = "";
          try {
            const { value, files } = await form.read();
            const scalar = value === null || typeof value !== "object";
            this.send([...(value === undefined ? [] : [scalar ? { text: String(value) } : { data: value }]), ...files]);
          } catch (error) { said.textContent = error.message; }
        },
      }, form.node, said, h("button.button.primary", { type: "submit" }, "Answer")));
      this.stick();
      mine.querySelector("input, select, textarea")?.focus();
      return;
    }
    if (/\b(yes\s*(\/|or)\s*no|y\/n)\b/i.test(partsText(message?.parts).slice(-300))) {
      mine.append(yesNo());
    }
    this.focus();
  }

  /** Go on with a task that exists: its messages and artifacts, then what is still to come. */
  async openTask(key) {
    const row = await get(`tasks/${segment(key)}`);
    const task = row.task || {};
    this.hello.remove();
    this.context = row.contextId;
    this.logTask = row.id;
    for (const message of (task.history || []).slice(-100)) {
      this.transcript.append(h("div.bubble", { class: message.role === "ROLE_USER" ? "user" : "agent" }, partsView(message.parts, { plain: message.role === "ROLE_USER" })));
    }
    const turn = new AnswerView(this);
    turn.fold.apply({ task });
    for (const id of turn.fold.artifacts.keys()) turn.fold.touched.add(id);
    this.transcript.append(turn.node);
    turn.draw();
    turn.fold.last = row.records ?? 0;
    this.followLog(key);
    if (turn.fold.settled) { turn.ended = true; this.end(turn); } else {
      this.running = turn;
      turn.recovering = true;
      this.showState();
    }
    this.transcript.scrollTop = this.transcript.scrollHeight;
  }

  // -- beside it -----------------------------------------------------------------------------------------------

  addEvent(event) {
    const kind = ["task", "message", "statusUpdate", "artifactUpdate"].find((k) => event[k]) || "event";
    const body = event[kind] || event;
    const text = kind === "statusUpdate" ? `${stateName(body.status?.state)} ${partsText(body.status?.message?.parts)}` : kind === "artifactUpdate" ? partsText(body.artifact?.parts) : kind === "message" ? partsText(body.parts) : kind === "task" ? stateName(body.status?.state) : "";
    this.row(this.eventList, h("details", {}, h("summary", {}, h("span.seq", {}, event.seq ?? "·"), h("span.kind", {}, kind), event.replaces ? pill("replaces") : null, h("span.summary", { dir: "auto" }, line(text, 160))), lazy(() => jsonTree(event, { open: 3 }))));
    this.side.rename("events", `Events ${count(this.eventList.childElementCount)}`);
  }

  addWire(wire) {
    const text = String(wire.text ?? "");
    if (wire.kind === "end" && !wire.error) return;
    const about = wire.error ? line(wire.error, 200) : wire.kind === "request" ? `${line(wire.method, 10)} ${pathOf(wire.url)}` : wire.status ? String(wire.status) : "";
    const headers = Array.isArray(wire.headers) ? wire.headers : Object.entries(wire.headers || {});
    this.row(this.wireList, h("details", { class: wire.direction === "out" ? "out" : "in" }, h("summary", {}, h("span.arrow", { "aria-label": wire.direction === "out" ? "sent" : "received" }, wire.direction === "out" ? "→" : "←"), h("span.time", {}, clock(wire.time)), h("span.kind", {}, line(wire.kind, 12)), h("span.summary.mono", {}, about, about && text ? "  " : "", line(text, 160)), h("span.muted", {}, bytes(wire.bytes ?? text.length))),
      lazy(() => h("div", {}, wire.url ? h("p.mono", {}, line(`${wire.method} ${wire.url}`, 500)) : null, wire.ms !== undefined ? h("p.muted", {}, `after ${line(wire.ms, 12)} ms`) : null, headers.length ? h("pre.code", {}, headers.slice(0, 80).map(([n, v]) => `${line(n, 80)}: ${line(v, 400)}\n`)) : null, block(pretty(text), { tag: "pre.code" }), wire.cut ? h("p.muted", {}, "The rest is not shown.") : null))));
    this.side.rename("wire", `Bytes ${count(this.wireList.childElementCount)}`);
  }

  addChosen(chosen) {
    const why = Array.isArray(chosen.why) ? chosen.why : [];
    this.row(this.wireList, h("details.chosenline", {}, h("summary", {}, pill(line(`A2A ${chosen.version}`, 20)), " ", pill(line(chosen.binding, 20)), " ", h("span.mono.small.ellipsis", {}, line(chosen.url, 100))), h("ul", {}, why.slice(0, 20).map((w) => h("li", {}, line(w, 300))))));
  }

  row(rows, content) {
    if (rows.childElementCount >= MAX_SIDE_ROWS) rows.firstElementChild.remove();
    const scroller = rows.parentElement;
    const end = !scroller || scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
    rows.append(h("li", {}, content));
    if (end && scroller) scroller.scrollTop = scroller.scrollHeight;
  }

  copyAs() {
    const parts = this.input.value.trim() || this.files.length ? [...(this.input.value.trim() ? [{ text: this.input.value }] : []), ...this.files.map((f) => f.part)] : this.sent?.message.parts || [{ text: "hello" }];
    const url = this.agent?.url || this.url;
    const options = { url, parts, skill: this.skill.value || "", task: this.task, context: this.context, files: this.files, endpoint: jsonRpc(this), card: this.card };
    dialog("This message as a command", tabs([["cli", "dragoman", () => snippet(asCli(options))], ["curl", "curl", () => snippet(asCurl(options))], ["python", "Python", () => snippet(asPython(options))]], { label: "As" }));
  }
}

/** The block of the transcript that shows one answer as it grows. */
class AnswerView {
  constructor(conversation) {
    this.fold = new Fold();
    this.conversation = conversation;
    this.ended = false;
    this.recovering = false;
    this.stop = new AbortController();
    this.notes = h("div.notes");
    this.body = h("div.answerbody");
    this.foot = h("div.answerfoot");
    this.node = h("div.answer", {}, this.notes, this.body, this.foot);
    this.views = new Map();
    this.drawn = { notes: 0, replies: 0 };
    this.draw = eachFrame(() => this.render());
  }

  render() {
    const { fold } = this;
    const working = fold.notes.filter((n) => !FINAL.has(n.state) && !WAITING.has(n.state));
    if (working.length !== this.drawn.notes) {
      this.drawn.notes = working.length;
      const rest = working.slice(0, -1);
      fill(this.notes, rest.length ? h("details", {}, h("summary", {}, `${plural(rest.length, "earlier note")}`), rest.slice(-200).map((n) => h("p", { dir: "auto" }, line(partsText(n.message.parts), 300)))) : null,
        working.length ? h("p.latest", { dir: "auto" }, line(partsText(working.at(-1).message.parts), 400)) : null);
    }
    for (const id of fold.touched) {
      const artifact = fold.artifacts.get(id);
      if (!artifact) continue;
      let view = this.views.get(id);
      if (!view) { view = { node: h("section.artifact"), seen: null }; this.views.set(id, view); this.body.append(view.node); }
      if (view.seen === artifact) continue;
      view.seen = artifact;
      fill(view.node, artifact.name && this.views.size > 1 || isFileOnly(artifact) ? h("h3", {}, line(artifact.name || artifact.artifactId, 80)) : null, partsView(artifact.parts));
    }
    while (this.drawn.replies < fold.replies.length) this.body.append(h("div.reply", {}, partsView(fold.replies[this.drawn.replies++].parts)));
    if (fold.settled && fold.status?.message && !this.repeats(fold.status.message)) {
      this.said ??= this.body.appendChild(h("div.said"));
      const text = fold.status.message;
      // a command that needs a yes is shown as it is, not as Markdown
      if (this.saidFor !== text) { this.saidFor = text; fill(this.said, partsView(text.parts, { plain: questionsIn(text).some((q) => q.approval) })); }
    }
    this.conversation.stick();
    this.conversation.showState();
  }

  /** True if a message says what the artifacts above it say: the agents of a hub do that, for clients that read one of them. */
  repeats(message) {
    const said = partsText(message.parts).trim(), above = [...this.fold.touched].map((id) => partsText(this.fold.artifacts.get(id)?.parts).trim());
    return said !== "" && (above.includes(said) || above.join("") === said);
  }

  /** Its question has an answer, or the task has none any more: it does not wait. */
  answered(word) { this.badge?.replaceWith(pill(word)); }

  /** Follow it no longer: the conversation goes on with another message. */
  leave() {
    this.stop.abort();
    this.ended = true;
    this.done = true;
    this.recovering = false;
  }

  add(node) { this.foot.append(node); }
  fail(message) { this.foot.append(h("p.error", { role: "alert" }, line(message, 1000))); }

  finish() {
    this.draw();
    const { fold, conversation } = this;
    this.recovering = false;
    if (fold.state) this.foot.prepend((this.badge = badge(fold.state)), " ");
    if (conversation.agent && conversation.log && fold.taskId) this.foot.append(h("a.small", { href: `#task/${segment(conversation.log.key)}` }, "log of the task"));
  }
}

function pathOf(url) {
  try { return line(new URL(url).pathname, 80); } catch { return line(url, 80); }
}

const isFileOnly = (artifact) => artifact.parts?.length && artifact.parts.every((p) => p.raw !== undefined || p.url !== undefined);

/** Makes its content when it is opened. */
function lazy(make) {
  const body = h("div.lazy");
  requestAnimationFrame(() => body.closest("details")?.addEventListener("toggle", (event) => { if (event.target.open && !body.childElementCount) body.append(make()); }));
  return body;
}

function pretty(text) {
  if (text.length > 200_000 || !/^\s*[[{]/.test(text)) return text;
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

// -- copy as ----------------------------------------------------------------------------------------------------

const snippet = (text) => h("div.codeblock", {}, h("div.codehead", {}, h("span", {}, ""), copyButton(text)), block(text, { tag: "pre.code" }));
const shell = (text) => `'${String(text).replaceAll("'", "'\\''")}'`;
const short = (parts) => parts.map((p) => (typeof p.raw === "string" && p.raw.length > 200 ? { ...p, raw: "BASE64" } : p));

/** The address for JSON-RPC, and the version of A2A that is spoken there. */
function jsonRpc(conversation) {
  const { card, agent } = conversation;
  const offered = list(agent?.interfaces || card.supportedInterfaces).map(dict).filter((i) => i.protocolBinding === "JSONRPC");
  const found = offered.find((i) => String(i.protocolVersion).startsWith("1")) || offered[0];
  if (found) return { url: String(found.url), version: String(found.protocolVersion) };
  return { url: String(card.url || agent?.url || conversation.url), version: String(card.protocolVersion || (agent ? "1.0" : "0.3")) };
}

const TOKEN = "AGENT_TOKEN";

/** The header that a card asks for, with a variable of the shell as its secret; "" for an agent that is open. */
function secretHeader(card) {
  const schemes = Object.values(dict(card.securitySchemes)).map(dict);
  if (!schemes.length || !list(card.securityRequirements || card.security).length) return "";
  const first = schemes[0], key = dict(first.apiKeySecurityScheme || (first.type === "apiKey" ? first : null)), http = dict(first.httpAuthSecurityScheme || first);
  if ((key.location || key.in) === "header" && /^[\w-]{1,80}$/.test(key.name)) return `${key.name}: $${TOKEN}`;
  return String(http.scheme).toLowerCase() === "basic" ? `authorization: Basic $(printf %s "$${TOKEN}" | base64)` : `authorization: Bearer $${TOKEN}`;
}

const OLD_PART = (p) => (typeof p.text === "string" ? { kind: "text", text: p.text } : p.data !== undefined ? { kind: "data", data: p.data }
  : { kind: "file", file: { ...(p.url ? { uri: p.url } : { bytes: p.raw }), ...(p.filename ? { name: p.filename } : {}), ...(p.mediaType ? { mimeType: p.mediaType } : {}) } });

function asCurl({ endpoint, parts, skill, task, context, card }) {
  const now = endpoint.version.startsWith("1"), streams = Boolean(dict(card.capabilities).streaming);
  const message = { messageId: `m-${Date.now()}`, role: now ? "ROLE_USER" : "user", ...(now ? {} : { kind: "message" }), parts: now ? short(parts) : short(parts).map(OLD_PART), ...(task ? { taskId: task } : {}), ...(context ? { contextId: context } : {}), ...(skill ? { metadata: { skillId: skill } } : {}) };
  const method = now ? (streams ? "SendStreamingMessage" : "SendMessage") : streams ? "message/stream" : "message/send";
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params: { message } }, null, 2);
  const secret = secretHeader(card);
  const headers = ["-H 'content-type: application/json'", ...(now ? ["-H 'a2a-version: 1.0'"] : []), ...(secret ? [`-H "${secret}"`] : [])];
  return `curl -N ${shell(endpoint.url)} \\\n  ${headers.join(" \\\n  ")} \\\n  -d ${shell(body)}`;
}

function asCli({ url, parts, skill, task, context, card }) {
  const words = ["dragoman send", shell(url)];
  for (const p of parts) {
    if (typeof p.text === "string") words.push(words.length === 2 && !p.text.startsWith("-") ? shell(p.text) : `--text=${shell(p.text)}`);
    else if (p.data !== undefined) words.push(`--data ${shell(JSON.stringify(p.data))}`);
    else words.push(`-f ${shell(p.filename || p.url || "file")}`);
  }
  if (skill) words.push(`--skill ${shell(skill)}`);
  if (task) words.push(`--task-id ${shell(task)}`);
  else if (context) words.push(`--context-id ${shell(context)}`);
  if (secretHeader(card)) words.push(`--auth env:${TOKEN}`);
  return words.join(" ");
}

function asPython({ url, parts, skill, task, context, card }) {
  const contents = parts.map((p) => (typeof p.text === "string" ? python(p.text) : p.data !== undefined ? python(p.data) : `Path(${python(p.filename || "file")})`));
  const options = [skill ? `skill=${python(skill)}` : "", task ? `task=${python(task)}` : context ? `context=${python(context)}` : ""].filter(Boolean);
  const files = contents.some((c) => c.startsWith("Path("));
  return `import asyncio\n${files ? "from pathlib import Path\n" : ""}\nfrom dragoman import connect\n\n\nasync def main():\n    async with connect(${python(url)}${secretHeader(card) ? `, credentials="env:${TOKEN}"` : ""}) as agent:\n        async for piece in agent.stream(${[...contents, ...options].join(", ")}):\n            print(piece.text, end="")\n\n\nasyncio.run(main())\n`;
}

/** JSON is Python, but for three words. */
function python(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([k, v]) => `${JSON.stringify(k)}: ${python(v)}`).join(", ")}}`;
  return JSON.stringify(value);
}
