// Webhooks: who is told of which task, what arrived and what did not, and a receiver to try them with.

import { follow, get, post } from "./api.js";
import { block, button, clock, copyButton, count, empty, failure, fill, h, line, pill, segment, toast, when } from "./dom.js";
import { table } from "./panel.js";

const MAX_DELIVERIES = 200;

export function webhooksView(there) {
  let state = there.query.get("state") || "";
  const chips = h("div.chips", { role: "group", "aria-label": "Webhooks to show" });
  const body = h("div");
  const receiver = h("section.receiver", {}, h("h2", {}, "Test receiver"), h("p.muted", {}, "An address of this console that takes deliveries and shows them. Give it to a task as its webhook."));
  const node = h("div.view", {}, h("div.viewhead", {}, h("h1", {}, "Webhooks")), chips, body, receiver);
  const streams = [];

  async function load() {
    fill(chips, [["", "All"], ["pending", "Pending"], ["failed", "Failed"], ["dead", "Given up"]].map(([id, name]) =>
      h("button.chip", { type: "button", "aria-pressed": state === id ? "true" : "false", onclick: () => { state = id; load(); } }, name)));
    try {
      const { webhooks, next } = await get("webhooks", { state });
      const older = next && button("More", async () => {
        try { const page = await get("webhooks", { state, cursor: next }); older.replaceWith(webhookTable(page.webhooks, load)); } catch (error) { failure(error); }
      }, { class: "quiet" });
      if (body.contains(document.activeElement)) return;
      fill(body, webhooks.length ? [webhookTable(webhooks, load), older] : empty("No webhooks", state ? "None in this state." : "No task has a webhook. A caller asks for one with a push notification config."));
    } catch (error) { if (!body.childElementCount) fill(body, empty("The webhooks could not be read", line(error.message, 300))); }
  }

  const made = h("div");
  receiver.append(button("Make a receiver", async (event) => {
    event.target.disabled = true;
    try {
      const { id, url } = await post("receivers");
      const deliveries = h("ol.deliveries", { "aria-live": "polite", "aria-label": "Deliveries" });
      const waiting = h("p.muted", {}, "Nothing delivered yet.");
      made.append(h("article.card", {}, h("div.row.wrap", {}, h("code.address", {}, line(url, 300)), copyButton(url)), waiting, deliveries));
      streams.push(follow(`receivers/${segment(id)}/events`, { on(name, delivery) {
        waiting.remove();
        if (deliveries.childElementCount >= MAX_DELIVERIES) deliveries.lastElementChild.remove();
        deliveries.prepend(deliveryView(delivery));
      } }));
    } catch (error) { failure(error); }
    event.target.disabled = false;
  }), made);

  load();
  const timer = setInterval(load, 5000);
  return { title: "Webhooks", node, close() { clearInterval(timer); streams.forEach((s) => s.close()); } };
}

function deliveryView({ time, headers, body }) {
  const rows = Array.isArray(headers) ? headers : Object.entries(headers || {});
  return h("li", {}, h("details", {}, h("summary", {}, h("span.mono", {}, clock(time)), " ", h("span.ellipsis", {}, line(typeof body === "string" ? body : JSON.stringify(body), 120))),
    h("pre.code", {}, rows.slice(0, 60).map(([n, v]) => `${line(n, 80)}: ${line(v, 300)}\n`)), block(typeof body === "string" ? body : JSON.stringify(body, null, 2), { tag: "pre.code" })));
}

export function webhookTable(webhooks, changed) {
  const again = (hook, from) => async () => {
    try { await post(`webhooks/${segment(hook.key)}/redeliver`, { from }); toast("It is being delivered again."); changed?.(); } catch (error) { failure(error); }
  };
  return table("Webhooks", ["Address", "Task", "Delivered", "Attempts", "Last error", ""], webhooks.map((w) => h("tr", {},
    h("td.grow", { data: { label: "Address" } }, h("code", {}, line(w.url, 120)), " ", w.dead ? pill("given up", "bad") : w.pending ? pill(`${count(w.last - w.cursor)} pending`, "wait") : pill("up to date", "good")),
    h("td", { data: { label: "Task" } }, w.task ? h("a.mono.small", { href: `#task/${segment(w.task)}` }, line(w.task, 13)) : "–"),
    h("td.nowrap", { data: { label: "Delivered" } }, `${count(w.cursor)} of ${count(w.last)}`),
    h("td.num", { data: { label: "Attempts" } }, count(w.attempts)),
    h("td", { data: { label: "Last error" } }, w.lastError ? h("span.errortext", {}, line(w.lastError, 200)) : "–", w.nextAttempt ? h("div.small.muted", {}, "next ", when(w.nextAttempt, (t) => { const ms = Date.parse(t) - Date.now(); return ms > 0 ? `in ${Math.ceil(ms / 1000)} s` : "now"; })) : null),
    h("td.nowrap", {}, button("Redeliver", again(w, null), { class: "small" }), " ", button("From the start", again(w, 1), { class: "small quiet" })))));
}
