// What the events of a stream add up to: the task's state, its artifacts in order, and what was said.

import { FINAL, WAITING } from "./dom.js";

export class Fold {
  constructor() {
    this.taskId = null;
    this.contextId = null;
    this.state = null;
    this.status = null;
    this.artifacts = new Map();
    this.touched = new Set();
    this.notes = [];
    this.replies = [];
    this.last = 0;
  }

  /** One event in 1.0's shape. False if it was there before. */
  apply(event) {
    if (typeof event.seq === "number") {
      if (event.seq <= this.last) return false;
      this.last = event.seq;
    }
    const { task, message, statusUpdate, artifactUpdate } = event;
    if (task) {
      this.identify(task.id, task.contextId);
      for (const artifact of task.artifacts || []) this.artifacts.set(artifact.artifactId, { ...artifact, parts: artifact.parts || [] });
      this.setStatus(task.status, false);
    } else if (message) {
      this.identify(message.taskId, message.contextId);
      this.replies.push(message);
    } else if (statusUpdate) {
      this.identify(statusUpdate.taskId, statusUpdate.contextId);
      this.setStatus(statusUpdate.status, true);
    } else if (artifactUpdate) {
      this.identify(artifactUpdate.taskId, artifactUpdate.contextId);
      const piece = artifactUpdate.artifact || {};
      const old = this.artifacts.get(piece.artifactId);
      const parts = piece.parts || [];
      if (old && artifactUpdate.append && !event.replaces) {
        this.artifacts.set(piece.artifactId, { ...old, ...piece, parts: joined(old.parts, parts) });
      } else this.artifacts.set(piece.artifactId, { ...piece, parts: [...parts] });
      this.touched.add(piece.artifactId);
    }
    return true;
  }

  identify(task, context) {
    if (task) this.taskId = task;
    if (context) this.contextId = context;
  }

  setStatus(status, note) {
    if (!status) return;
    this.state = status.state;
    this.status = status;
    if (note && status.message && !this.settled) this.notes.push({ message: status.message, state: status.state });
  }

  get final() { return FINAL.has(this.state); }
  get waiting() { return WAITING.has(this.state); }
  get settled() { return this.final || this.waiting; }
}

/** Texts that are streamed in pieces stay one part, so that a long stream is not a long list. */
function joined(old, more) {
  const parts = [...old];
  for (const part of more) {
    const last = parts.at(-1);
    if (typeof part?.text === "string" && typeof last?.text === "string" && part.mediaType === last.mediaType && !part.metadata) parts[parts.length - 1] = { ...last, text: last.text + part.text };
    else parts.push(part);
  }
  return parts;
}

/** A public record of a log as the event that its readers get. */
export function eventOf(record) {
  const data = record.data || {};
  if (data.statusUpdate || data.artifactUpdate || data.message?.parts || data.task) return { ...data, seq: record.seq };
  if (record.kind === "status" || record.kind === "ask") return { statusUpdate: data, seq: record.seq };
  if (record.kind === "artifact") return { artifactUpdate: data, seq: record.seq };
  if (record.kind === "reply") return { message: data, seq: record.seq };
  return null;
}
