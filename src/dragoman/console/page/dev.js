// `dragoman dev`: says when the agent's code is loaded again, and shows its error when it does not load.

import { follow } from "./api.js";
import { block, fill, h, iconButton, line } from "./dom.js";

let bar = null;

export function followReloads() {
  if (bar) return;
  bar = h("div.devbar", { role: "status", "aria-live": "polite", hidden: true });
  document.body.append(bar);
  follow("dev/events", {
    on(event, data) {
      if (event !== "reload") return;
      if (bar.hidden && data.state === "serving") return;
      bar.className = `devbar ${data.state === "error" ? "bad" : data.state === "serving" ? "good" : ""}`;
      bar.hidden = false;
      if (data.state === "error") fill(bar, h("div.dialoghead", {}, h("strong", {}, "The new code does not load. The old code goes on serving."), iconButton("close", "Hide this error", () => (bar.hidden = true))), block(data.message, { tag: "pre.code", first: 4000 }));
      else fill(bar, data.state === "restarting" ? "The code changed: the agent restarts …" : line(data.message, 200) || "The agent serves the new code.");
      if (data.state === "serving") setTimeout(() => (bar.hidden = bar.classList.contains("good")), 3000);
    },
  });
}
