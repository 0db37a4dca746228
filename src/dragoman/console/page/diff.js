// What changed between two texts, line by line.

const MOST = 4000;

/** [[" " | "+" | "-", line], ...]: the longest common lines stay. Long texts are compared at their ends only. */
export function diffLines(before, after) {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start++;
  let end = 0;
  while (end < before.length - start && end < after.length - start && before.at(-1 - end) === after.at(-1 - end)) end++;
  const a = before.slice(start, before.length - end), b = after.slice(start, after.length - end);
  return [
    ...before.slice(0, start).map((text) => [" ", text]),
    ...(a.length * b.length > MOST * MOST ? [...a.map((text) => ["-", text]), ...b.map((text) => ["+", text])] : common(a, b)),
    ...before.slice(before.length - end).map((text) => [" ", text]),
  ];
}

function common(a, b) {
  const width = b.length + 1, best = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      best[i * width + j] = a[i] === b[j] ? best[(i + 1) * width + j + 1] + 1 : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
    }
  }
  const out = [];
  let i = 0, j = 0;
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) { out.push([" ", a[i++]]); j++; }
    else if (best[(i + 1) * width + j] >= best[i * width + j + 1]) out.push(["-", a[i++]]);
    else out.push(["+", b[j++]]);
  }
  while (i < a.length) out.push(["-", a[i++]]);
  while (j < b.length) out.push(["+", b[j++]]);
  return out;
}
