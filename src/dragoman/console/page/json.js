// JSON as people read it: a tree that is made as it is opened. Long strings are cut.

import { block, copyButton, count, h, line, visible } from "./dom.js";

const SHOWN_STRING = 300;
const SHOWN_ENTRIES = 100;

/** A value as a tree; the first levels are open. */
export function jsonTree(value, { open = 2, copy = true } = {}) {
  return h("div.json", {}, copy ? h("div.jsoncopy", {}, copyButton(() => JSON.stringify(value, null, 2), "Copy JSON")) : null, node(null, value, open));
}

function key(name) {
  return name === null ? null : [h("span.jkey", {}, line(name, 120)), ": "];
}

function scalar(value) {
  if (typeof value !== "string") return h("span.jlit", {}, String(value));
  if (value.length <= SHOWN_STRING) return h("span.jstr", { dir: "auto" }, JSON.stringify(visible(value)));
  return block(value, { tag: "pre.jstr.long", first: SHOWN_STRING * 4 });
}

function node(name, value, open) {
  if (value === null || typeof value !== "object") return h("div.jrow", {}, key(name), scalar(value));
  const list = Array.isArray(value);
  const names = Object.keys(value);
  const size = list ? `[${count(names.length)}]` : `{${count(names.length)}}`;
  if (!names.length) return h("div.jrow", {}, key(name), h("span.jlit", {}, list ? "[]" : "{}"));
  const body = h("div.jbody");
  let made = 0;
  const more = () => {
    body.querySelector(":scope > .morerows")?.remove();
    for (const n of names.slice(made, made + SHOWN_ENTRIES)) body.append(node(list ? `${n}` : n, value[n], open - 1));
    made += SHOWN_ENTRIES;
    if (made < names.length) {
      body.append(h("button.button.small.morerows", { type: "button", onclick: more }, `${count(names.length - made)} more`));
    }
  };
  const details = h("details.jnode", { ontoggle: () => details.open && !made && more() }, h("summary", {}, key(name), h("span.muted", {}, size)), body);
  if (open > 0) { details.open = true; more(); }
  return details;
}
