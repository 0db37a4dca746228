// A list of any length: only the rows that can be seen are in the page. Every row has the same height.

import { h } from "./dom.js";

const OVERSCAN = 12;
const MAX_HEIGHT = 15_000_000; // browsers cut elements that are much higher

/**
 * `row(index)` makes a node; `count()` says how many there are. `want(first, last)` is told which rows are seen.
 * `update()` draws again, `scrollTo(index)` shows a row, and the list sticks to its end while it is there.
 */
export function virtualList({ row, count, want, height = 30, label }) {
  const space = h("div.vspace", { role: "presentation" });
  const node = h("div.vlist", { role: "list", "aria-label": label, tabindex: "0" }, space);
  const drawn = new Map();
  let stick = true, asked = false;
  const scale = () => Math.max(1, (count() * height) / MAX_HEIGHT);

  function draw() {
    asked = false;
    const total = count();
    const ratio = scale();
    const full = Math.min(total * height, MAX_HEIGHT);
    if (space.style.height !== `${full}px`) space.style.height = `${full}px`;
    const view = node.clientHeight || 400;
    const top = node.scrollTop;
    const first = Math.max(0, Math.floor((top * ratio) / height) - OVERSCAN);
    const last = Math.min(total - 1, Math.ceil((top * ratio + view) / height) + OVERSCAN);
    for (const [index, element] of drawn) {
      if (index < first || index > last) { element.remove(); drawn.delete(index); }
    }
    for (let index = first; index <= last; index++) {
      let element = drawn.get(index);
      if (!element) {
        element = row(index);
        element.classList.add("vrow");
        element.setAttribute("role", "listitem");
        element.setAttribute("aria-setsize", total);
        element.setAttribute("aria-posinset", index + 1);
        drawn.set(index, element);
        space.append(element);
      }
      element.style.transform = `translateY(${index * height - top * ratio + top}px)`;
    }
    if (total) want?.(first, last);
  }
  function ask() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(draw);
  }
  const atEnd = () => node.scrollTop + node.clientHeight >= node.scrollHeight - height * 2;
  node.addEventListener("scroll", () => { stick = atEnd(); ask(); }, { passive: true });
  new ResizeObserver(ask).observe(node);
  return {
    node,
    /** Draw again; `from` is the first row that is different. */
    update(from = Infinity) {
      for (const [index, element] of drawn) if (index >= from) { element.remove(); drawn.delete(index); }
      const follow = stick;
      draw();
      if (follow) { node.scrollTop = node.scrollHeight; ask(); }
    },
    redraw(index) {
      drawn.get(index)?.remove();
      drawn.delete(index);
      ask();
    },
    each: (work) => drawn.forEach((element, index) => work(element, index)),
    scrollTo(index) {
      const ratio = scale();
      const at = (index * height) / ratio, view = node.clientHeight;
      if (at < node.scrollTop || at + height > node.scrollTop + view) node.scrollTop = Math.max(0, at - view / 2);
      stick = atEnd();
      ask();
    },
    stick: (on) => (stick = on),
  };
}
