// Markdown as DOM nodes. It knows no HTML: a tag in the text is text. Links ask before they open, images are never loaded.

import { block, copyButton, h, line, link, visible } from "./dom.js";

const MAX_CHARACTERS = 100_000;
const MAX_BLOCKS = 4_000;
const MAX_DEPTH = 6;
const MAX_CELLS = 5_000;

/** The text as nodes. What is too long for formatting is shown as it is. */
export function markdown(text) {
  const whole = String(text ?? "");
  if (whole.length > MAX_CHARACTERS) return block(whole);
  const lines = visible(whole).split("\n");
  const left = { blocks: MAX_BLOCKS, cells: MAX_CELLS };
  return h("div.markdown", { dir: "auto" }, blocks(lines, 0, left));
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]{0,40})/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const ITEM = /^( {0,12})([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const QUOTE = /^ {0,3}> ?/;
const DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

function blocks(lines, depth, left) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const row = lines[at];
    if (left.blocks-- <= 0) {
      found.push(block(lines.slice(at).join("\n")));
      break;
    }
    if (!row.trim()) { at++; continue; }
    let match = FENCE.exec(row);
    if (match) {
      const [, fence, language] = match;
      let end = at + 1;
      while (end < lines.length && !closes(lines[end], fence)) end++;
      found.push(code(lines.slice(at + 1, end).join("\n"), language));
      at = end + 1;
      continue;
    }
    match = HEADING.exec(row);
    if (match) {
      const level = Math.min(match[1].length + 2, 6); // the page has h1 and h2
      found.push(h(`h${level}.md${match[1].length}`, {}, inline(row.slice(match[0].length).replace(/[ \t]#+[ \t]*$/, ""))));
      at++;
      continue;
    }
    if (row.length < 200 && RULE.test(row)) { found.push(h("hr")); at++; continue; }
    if (QUOTE.test(row) && depth < MAX_DEPTH) {
      let end = at;
      while (end < lines.length && (QUOTE.test(lines[end]) || (lines[end].trim() && !starts(lines[end])))) end++;
      found.push(h("blockquote", {}, blocks(lines.slice(at, end).map((l) => l.replace(QUOTE, "")), depth + 1, left)));
      at = end;
      continue;
    }
    if (ITEM.test(row) && depth < MAX_DEPTH) {
      const [node, end] = list(lines, at, depth, left);
      found.push(node);
      at = end;
      continue;
    }
    if (row.includes("|") && at + 1 < lines.length && lines[at + 1].length < 2000 && lines[at + 1].includes("-") && DIVIDER.test(lines[at + 1])
        && cells(row).length === cells(lines[at + 1]).length) {
      const [node, end] = table(lines, at, left);
      found.push(node);
      at = end;
      continue;
    }
    let end = at + 1;
    while (end < lines.length && lines[end].trim() && !starts(lines[end])) end++;
    found.push(h("p", {}, inline(lines.slice(at, end).map((l) => l.trimStart()).join("\n"))));
    at = end;
  }
  return found;
}

const starts = (row) => FENCE.test(row) || HEADING.test(row) || QUOTE.test(row) || ITEM.test(row) || (row.length < 200 && RULE.test(row));

function closes(row, fence) {
  const text = row.trim();
  return text.length >= fence.length && text.length < 100 && [...text].every((c) => c === fence[0]);
}

export function code(text, language = "") {
  return h("div.codeblock", {},
    h("div.codehead", {}, h("span", {}, line(language, 40) || "code"), copyButton(text)),
    block(text, { tag: "pre.code" }));
}

function list(lines, at, depth, left) {
  const first = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  const base = first[1].length;
  const node = h(ordered ? "ol" : "ul");
  if (ordered && first[2] !== "1." && first[2] !== "1)") node.start = parseInt(first[2], 10);
  while (at < lines.length) {
    const match = ITEM.exec(lines[at]);
    if (!match || match[1].length < base || match[1].length > base + 1 || /\d/.test(match[2]) !== ordered) break;
    const indent = match[0].length;
    const body = [lines[at].slice(indent)];
    let end = at + 1, blank = false;
    while (end < lines.length) {
      const row = lines[end];
      if (!row.trim()) { blank = true; body.push(""); end++; continue; }
      const spaces = row.length - row.trimStart().length;
      if (spaces > base && (spaces >= Math.min(indent, base + 2))) { body.push(row.slice(Math.min(spaces, indent))); end++; blank = false; continue; }
      if (blank || starts(row)) break;
      body.push(row.trimStart());
      end++;
    }
    const item = h("li");
    const task = /^\[([ xX])\][ \t]/.exec(body[0]);
    if (task) {
      body[0] = body[0].slice(task[0].length);
      item.append(h("span.checkbox", { "aria-label": task[1] === " " ? "open" : "done" }, task[1] === " " ? "☐ " : "☑ "));
    }
    const inner = blocks(body, depth + 1, left);
    if (inner.length && inner[0].tagName === "P") inner[0].classList.add("tight");
    item.append(...inner);
    node.append(item);
    at = end;
    if (left.blocks <= 0) break;
  }
  return [node, at];
}

function cells(row) {
  return row.trim().replace(/^\|/, "").replace(/\|$/, "").split("|").map((c) => c.trim());
}

function table(lines, at, left) {
  const align = cells(lines[at + 1]).map((c) => (c.endsWith(":") ? (c.startsWith(":") ? "center" : "right") : ""));
  const row = (tag, text) => h("tr", {}, align.map((side, i) => { left.cells--; return h(tag + (side ? "." + side : ""), {}, inline(cells(text)[i] || "")); }));
  const head = h("thead", {}, row("th", lines[at]));
  const body = h("tbody");
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim() && left.cells > 0) body.append(row("td", lines[end++]));
  return [h("div.tablewrap", { tabindex: "0" }, h("table", {}, head, body)), end];
}

// -- inside a paragraph -----------------------------------------------------------------------------------------

const SPECIAL = /[\\`*_~\[!<\n]|https?:\/\//g;
const PUNCTUATION = /[!-/:-@[-`{-~]/;

/** One pass with a stack: time grows with the length of the text. */
function inline(text) {
  const root = [];
  const stack = [{ mark: "", nodes: root, text: "" }];
  const top = () => stack[stack.length - 1];
  const put = (node) => top().nodes.push(node);
  const noClose = new Map(); // a mark of this length has no closing one behind this place
  let at = 0;
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const found = SPECIAL.exec(text);
    if (!found) { put(text.slice(at)); break; }
    if (found.index > at) put(text.slice(at, found.index));
    at = found.index;
    const c = text[at];
    if (c === "\\" && PUNCTUATION.test(text[at + 1] || "")) { put(text[at + 1]); at += 2; continue; }
    if (c === "\n") {
      put(h("br"));
      at++;
      continue;
    }
    if (c === "`") {
      let n = 1;
      while (text[at + n] === "`") n++;
      const mark = "`".repeat(n);
      const end = noClose.has("`" + n) ? -1 : closing(text, at + n, mark);
      if (end < 0) { noClose.set("`" + n, true); put(mark); at += n; continue; }
      put(h("code", {}, text.slice(at + n, end).replace(/\n/g, " ").trim()));
      at = end + n;
      continue;
    }
    if (c === "!" || c === "[") {
      const image = c === "!";
      if (image && text[at + 1] !== "[") { put(c); at++; continue; }
      const target = linkAt(text, at + (image ? 2 : 1));
      if (!target) { put(image ? "![" : "["); at += image ? 2 : 1; continue; }
      put(image ? picture(target.label, target.url) : withHost(target.label, target.url));
      at = target.end;
      continue;
    }
    if (c === "<") {
      const auto = /^<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/.exec(text.slice(at, at + 2010));
      if (auto) { put(link(line(auto[1], 120), auto[1])); at += auto[0].length; continue; }
      put(c); at++;
      continue;
    }
    if (c === "h") {
      const url = /^https?:\/\/[^\s<>"'`|\\^{}]{1,2000}/.exec(text.slice(at, at + 2010));
      if (!url) { put(c); at++; continue; }
      const clean = url[0].replace(/[.,;:!?)\]*_]+$/, "");
      put(link(line(clean, 120), clean));
      at += clean.length;
      continue;
    }
    if (c === "*" || c === "_" || c === "~") {
      let n = 1;
      while (text[at + n] === c && n < 3) n++;
      const before = text[at - 1] || " ", after = text[at + n] || " ";
      const opens = !/\s/.test(after) && !(c === "_" && /\w/.test(before));
      const shuts = !/\s/.test(before) && !(c === "_" && /\w/.test(after));
      const mark = c.repeat(n);
      const open = shuts ? stack.findLastIndex((s) => s.mark === mark) : -1;
      if (open > 0) {
        flatten(stack, open + 1);
        const inner = stack.pop();
        put(wrap(mark, inner.nodes));
      } else if (opens && (c !== "~" || n === 2) && stack.length < 20) {
        stack.push({ mark, nodes: [] });
      } else put(mark);
      at += n;
      continue;
    }
    put(c);
    at++;
  }
  flatten(stack, 1);
  return root;
}

/** What was opened and not closed is text. */
function flatten(stack, to) {
  while (stack.length > to) {
    const { mark, nodes } = stack.pop();
    const below = stack[stack.length - 1].nodes;
    below.push(mark);
    for (const node of nodes) below.push(node);
  }
}

function wrap(mark, nodes) {
  if (mark === "~~") return h("s", {}, nodes);
  if (mark.length === 1) return h("em", {}, nodes);
  if (mark.length === 2) return h("strong", {}, nodes);
  return h("strong", {}, h("em", {}, nodes));
}

function closing(text, from, mark) {
  let at = from;
  while ((at = text.indexOf(mark, at)) >= 0) {
    let n = mark.length;
    while (text[at + n] === "`") n++;
    if (n === mark.length) return at;
    at += n;
  }
  return -1;
}

/** `label](url "title")`, whose label and address are bounded. */
function linkAt(text, from) {
  const part = text.slice(from, from + 3000);
  const end = part.slice(0, 502).indexOf("](");
  if (end < 0) return null;
  const label = part.slice(0, end);
  if (label.includes("\n\n")) return null;
  const rest = /^\s*<?((?:[^\s()<>\\]|\([^\s()]*\))*)>?(?:\s+"[^"]{0,300}")?\s*\)/.exec(part.slice(end + 2));
  if (!rest) return null;
  return { label, url: rest[1], end: from + end + 2 + rest[0].length };
}

function withHost(label, url) {
  const node = link(line(label, 300) || line(url, 120), url);
  let host = "";
  try { host = new URL(url).host; } catch { return node; }
  return label.includes(host) || !host ? node : h("span", {}, node, h("span.host", {}, ` (${line(host, 60)})`));
}

function picture(label, url) {
  return h("span.picture", {}, "🖼 ", line(label, 100) || "image", " ", link("open", url));
}
