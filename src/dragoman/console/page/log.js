// The log of one task: pages of it as they are wanted, and what is appended as it happens. Every record is kept once.

import { follow, get } from "./api.js";
import { clock, count, duration, FINAL, h, line, pill, segment } from "./dom.js";
import { virtualList } from "./virtual.js";

const PAGE = 500;
const MAX_KEPT = 20_000;

export const PUBLIC = new Set(["status", "ask", "artifact", "reply"]);

/** `onchange(from)` says that records from `from` on are new; `onrow` gets the task's row; `onstatus` the connection's state. */
export class TaskLog {
  constructor(key, { onchange = () => {}, onrow = () => {}, onstatus = () => {}, onrecord = () => {} } = {}) {
    Object.assign(this, { key, onchange, onrow, onstatus, onrecord });
    this.records = new Map();
    this.last = 0;
    this.state = "";
    this.pending = new Map();
    this.closed = false;
    this.stream = null;
    this.over = false;
    this.errors = 0;
  }

  get path() { return `tasks/${segment(this.key)}`; }

  /** Read the end of the log, then follow it. `known` is the task's row, if the caller has it. */
  async open(known) {
    const row = known || (await get(this.path, { fold: "0" }));
    this.onrow(row);
    this.last = row.records || 0;
    if (this.last) await this.load(Math.max(0, this.last - PAGE));
    if (this.closed) return;
    this.follow();
    this.onchange(1);
  }

  /** Follow it from where it is: a browser has few connections, so a log that nobody looks at is not followed. */
  follow() {
    if (this.stream || this.closed || this.over) return;
    this.stream = follow(this.path + "/events", {
      cursor: () => this.last || undefined,
      status: (state, error) => { this.state = state; this.onstatus(state, error); },
      on: (event, data) => {
        if (event !== "state") return this.append(data);
        this.onrow(data);
        this.over = FINAL.has(data.state) && this.last >= data.records;
        if (this.over) this.pause(); // it never changes again
      },
    });
  }

  pause() {
    this.stream?.close();
    this.stream = null;
  }

  take(records) {
    for (const record of records) this.records.set(record.seq, record);
  }

  append(record) {
    if (!record || typeof record.seq !== "number" || this.records.has(record.seq)) return;
    this.records.set(record.seq, record);
    this.last = Math.max(this.last, record.seq);
    if (this.records.size > MAX_KEPT) this.records.delete(this.records.keys().next().value);
    this.onrecord(record);
    this.onchange(record.seq);
  }

  async load(after, limit = PAGE) {
    const page = await get(this.path + "/records", { after, limit });
    this.take(page.records);
    this.last = Math.max(this.last, page.last || 0);
    return page;
  }

  /** Make sure that records first..last are here, or will be. */
  want(first, last) {
    for (let start = Math.floor((first - 1) / PAGE) * PAGE; start < Math.min(last, this.last); start += PAGE) {
      const missing = this.firstMissing(Math.max(start + 1, 1), Math.min(start + PAGE, this.last));
      if (missing === null || this.pending.has(start)) continue;
      this.pending.set(start, true);
      this.load(missing - 1, start + PAGE - missing + 1)
        .then((page) => { this.pending.delete(start); this.errors = 0; this.onchange(page.records[0]?.seq ?? start + 1, true); })
        .catch(() => setTimeout(() => this.pending.delete(start), Math.min(5000, 250 * 2 ** this.errors++)));
    }
  }

  firstMissing(from, to) {
    for (let seq = from; seq <= to; seq++) if (!this.records.has(seq)) return seq;
    return null;
  }

  /** When a record was written; of one without a time, when the one before it was. */
  timeOf(seq) {
    for (let n = seq; n > 0 && n > seq - 200; n--) {
      const time = this.records.get(n)?.time;
      if (time) return Date.parse(time);
    }
    return NaN;
  }

  get complete() { return this.records.size >= this.last; }
  list() { return [...this.records.values()].sort((a, b) => a.seq - b.seq); }
  close() { this.closed = true; this.pause(); }
}

/** The rows of a log, of which only those that are seen are made. `onselect(seq)` is told which one was clicked. */
export function recordList(log, { onselect, selected = () => 0, label = "Records of the task", compact = false } = {}) {
  const list = virtualList({
    label, height: compact ? 28 : 30,
    count: () => log.last,
    want: (first, last) => log.want(first + 1, last + 1),
    row: (index) => {
      const seq = index + 1, record = log.records.get(seq);
      const node = record ? recordRow(record, log) : h("div.record.loading", {}, h("span.seq", {}, seq), h("span.muted", {}, "…"));
      node.dataset.seq = seq;
      node.addEventListener("click", () => onselect?.(seq));
      if (selected() === seq) node.classList.add("selected");
      return node;
    },
  });
  list.node.classList.add("records");
  if (compact) list.node.classList.add("compact");
  list.node.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -Infinity, End: Infinity }[event.key];
    if (!step || !onselect) return;
    event.preventDefault();
    const seq = Math.max(1, Math.min(log.last, (selected() || 0) + step));
    onselect(seq);
    list.scrollTo(seq - 1);
  });
  return Object.assign(list, {
    mark() { list.each((element) => element.classList.toggle("selected", Number(element.dataset.seq) === selected())); },
  });
}

/** Whether a process died between two records: the later one belongs to a new attempt. */
export const diedBetween = (before, record) => record.kind === "attempt" || Boolean(before && before.kind !== "attempt" && record.attempt > before.attempt && before.attempt > 0);
export const attemptOf = (record) => (record.kind === "attempt" && record.data?.n) || record.attempt;

export function recordRow(record, log) {
  const before = log.records.get(record.seq - 1);
  const died = diedBetween(before, record);
  const delta = before && record.time ? log.timeOf(record.seq) - log.timeOf(before.seq) : NaN;
  return h("div.record", { class: `k-${/^[a-z]+$/.test(record.kind) ? record.kind : "other"}${died ? " died" : ""}`, title: line(record.summary, 400) },
    h("span.seq", {}, record.seq),
    h("span.time", {}, clock(record.time)),
    h("span.delta", {}, delta > 0 ? `+${duration(delta)}` : ""),
    h("span.kind", {}, line(record.kind, 12)),
    died ? pill(Number.isFinite(delta) ? `no process for ${duration(delta)}` : "interrupted", "bad", "The process that ran the attempt before this one ended") : null,
    h("span.summary", { dir: "auto" }, died && record.kind !== "attempt" ? `attempt ${count(attemptOf(record))}: ` : "", line(record.summary, 300)),
    record.private ? h("span.private", { title: "Only operators see it" }, "private") : null);
}
