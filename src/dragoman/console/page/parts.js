// Parts of messages and artifacts: text, data and files, in A2A 1.0's shape.

import { block, button, bytes, h, line, link, visible } from "./dom.js";
import { jsonTree } from "./json.js";
import { markdown } from "./markdown.js";

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"]);
const MAX_PREVIEW = 5 << 20;

/** All parts, one under the other. Texts that follow each other in an artifact are one text. */
export function partsView(parts, { plain = false } = {}) {
  const nodes = [];
  let text = null;
  const flush = () => { if (text !== null) nodes.push(plain ? block(text) : markdown(text)); text = null; };
  for (const part of Array.isArray(parts) ? parts : []) {
    if (typeof part?.text === "string" && isProse(part.mediaType)) { text = (text ?? "") + part.text; continue; }
    flush();
    nodes.push(partView(part));
  }
  flush();
  return h("div.parts", {}, nodes);
}

const isProse = (type) => !type || /^text\/(plain|markdown)\b/i.test(String(type));

export function partView(part) {
  if (!part || typeof part !== "object") return block(String(part));
  if (typeof part.text === "string") return h("div.file", {}, fileHead(part, part.text.length), block(part.text));
  if (part.data !== undefined) return h("div.data", {}, jsonTree(part.data, { open: 2 }));
  if (typeof part.url === "string") {
    return h("div.file", {}, fileHead(part), h("div.row", {}, link(line(part.url, 100), part.url)));
  }
  if (typeof part.raw === "string") return fileView(part);
  if (part.cut !== undefined || part.raw !== undefined) return h("div.file", {}, fileHead(part), jsonTree(part, { open: 1 }));
  return jsonTree(part, { open: 1 });
}

function fileHead(part, size) {
  return h("div.filehead", {},
    h("bdi.filename", {}, line(part.filename || "file", 120)),
    h("span.muted", {}, line(part.mediaType || "", 80)),
    size === undefined ? null : h("span.muted", {}, bytes(size)));
}

function fileView(part) {
  const size = Math.floor((part.raw.length * 3) / 4) - (part.raw.endsWith("==") ? 2 : part.raw.endsWith("=") ? 1 : 0);
  const type = String(part.mediaType || "").split(";")[0].trim().toLowerCase();
  const preview = h("div.preview");
  const actions = h("div.row", {}, button("Download", () => download(part), { class: "small" }));
  if (PICTURES.has(type) && size <= MAX_PREVIEW) {
    const show = button("Show the picture", () => { show.remove(); preview.append(pictureOf(part, type)); }, { class: "small quiet" });
    actions.append(show);
  } else if (size <= MAX_PREVIEW && !PICTURES.has(type)) {
    const show = button("Show as text", () => { show.remove(); preview.append(block(new TextDecoder().decode(decode(part.raw)))); }, { class: "small quiet" });
    actions.append(show);
  }
  return h("div.file", {}, fileHead(part, Math.max(size, 0)), actions, preview);
}

function decode(raw) {
  try {
    const text = atob(raw.replace(/-/g, "+").replace(/_/g, "/"));
    return Uint8Array.from(text, (c) => c.charCodeAt(0));
  } catch {
    return new TextEncoder().encode(raw);
  }
}

function pictureOf(part, type) {
  const url = URL.createObjectURL(new Blob([decode(part.raw)], { type }));
  const image = h("img.picture", { alt: line(part.filename || "picture from the agent", 100), src: url });
  image.addEventListener("load", () => URL.revokeObjectURL(url));
  image.addEventListener("error", () => { URL.revokeObjectURL(url); image.replaceWith(h("p.muted", {}, "This is not a picture that can be shown.")); });
  return image;
}

/** Every file is saved as bytes: the browser never opens what an agent sent. */
function download(part) {
  const url = URL.createObjectURL(new Blob([decode(part.raw)], { type: "application/octet-stream" }));
  const name = visible(part.filename || "file").replace(/[\\/:*?"<>|]/g, "_").replace(/^\.+/, "_").slice(0, 120) || "file";
  const anchor = h("a", { href: url, download: name });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** The text of parts, for one line. */
export function partsText(parts) {
  return (Array.isArray(parts) ? parts : []).map((p) =>
    typeof p?.text === "string" ? p.text : p?.data !== undefined ? JSON.stringify(p.data)?.slice(0, 300) : p?.filename || p?.url || (p?.raw ? "file" : "")).join(" ");
}

/** A file that a person chose, as a part. */
export async function filePart(file) {
  const raw = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let at = 0; at < raw.length; at += 0x8000) text += String.fromCharCode(...raw.subarray(at, at + 0x8000));
  return { raw: btoa(text), filename: file.name, mediaType: file.type || "application/octet-stream" };
}
