// The inspector: any agent at any address. Its card with findings, how it is called and why, chat, bytes, and log in.

import { get, post } from "./api.js";
import { button, dialog, dict, empty, fill, h, line, list, pill, plural, segment, tabs, toast } from "./dom.js";
import { cardView, skillView } from "./agents.js";
import { Conversation } from "./chat.js";
import { jsonTree } from "./json.js";

let kept = null; // the agent that was looked at last

export function inspectView(there) {
  const body = h("div.inspectbody");
  const address = h("input.grow", { type: "text", inputmode: "url", placeholder: "https://agent.example.com", "aria-label": "Address of an agent", spellcheck: "false", value: there.query.get("url") || kept?.url || "" });
  const loginButton = button("Log in …", () => logIn(), { class: "quiet" });
  const said = h("span.muted");
  const node = h("div.view", {}, h("div.viewhead", {}, h("h1", {}, "Inspector")), h("form.row.wrap.inspectform", { onsubmit: (event) => { event.preventDefault(); look(); } }, address, h("button.button.primary", { type: "submit" }, "Inspect"), loginButton, said), body);
  let credentials = kept?.credentials ?? null;

  const showLogin = () => { said.textContent = credentials ? "logged in" : ""; };

  async function look() {
    const url = address.value.trim();
    if (!url) return;
    fill(body, h("p.muted", {}, "Reading the card …"));
    try {
      const found = await post("inspect", { url, credentials });
      kept = { url, credentials, found, talk: null };
      draw();
    } catch (error) { fill(body, empty("The agent could not be inspected", line(error.message, 600))); }
  }

  function draw() {
    const { url } = kept;
    const found = dict(kept.found), card = dict(found.card), at = dict(found.found);
    const findings = list(found.findings).map(dict);
    const serious = findings.filter((f) => f.severity === "error").length;
    kept.talk ??= new Conversation({ url, card, credentials: () => credentials });
    fill(body,
      h("div.viewhead", {}, h("h2", {}, line(card.name || url, 100)), serious ? pill(plural(serious, "error"), "bad") : pill("card is valid", "good"), h("span.muted", {}, [line(at.path, 60), line(at.status, 10), at.version ? `A2A ${line(at.version, 20)}` : ""].filter(Boolean).join(" · "))),
      tabs([
        ["card", "Card", () => h("div", {}, cardView(card, found.interfaces, url), signature(found.signature), h("h3", {}, plural(list(card.skills).length, "skill")), h("div.skills", {}, list(card.skills).slice(0, 100).map((s) => skillView(s))))],
        ["findings", `Findings ${findings.length}`, () => findingsView(findings)],
        ["chat", "Chat", () => kept.talk.node],
        ["resume", "Resume test", () => resumeView(url, () => credentials)],
        ["json", "JSON", () => jsonTree(found.card, { open: 2 })],
      ], { label: "What to show of the agent", selected: there.query.get("tab") || "card" }));
  }

  async function logIn() {
    const made = await loginDialog(address.value.trim(), kept?.found?.card);
    if (made) { credentials = made; if (kept) kept.credentials = made; showLogin(); toast("Logged in. The server keeps the credentials; this page holds a handle."); look(); }
  }

  showLogin();
  if (there.query.get("url")) look();
  else if (kept) draw();
  else fill(body, empty("Any agent, of any version", "Give the address of an agent or of its card. The page shows what the card says, what is wrong with it, and every byte of a conversation."));
  return { title: "Inspector", node, update: (next) => { if (next.query.get("url")) { address.value = next.query.get("url"); look(); } return true; } };
}

function signature(found) {
  if (!found || typeof found !== "object" || !Object.keys(found).length) return null;
  return h("details", {}, h("summary", {}, "Signature"), jsonTree(found, { open: 2, copy: false }));
}

function findingsView(findings) {
  if (!findings.length) return empty("No findings", "The card keeps every rule that was checked.");
  return h("ul.findings", {}, findings.slice(0, 200).map((f) => h("li", { class: ["error", "warning", "info"].includes(f.severity) ? f.severity : "info" },
    h("div.row.wrap", {}, pill(line(f.severity, 10), f.severity === "error" ? "bad" : f.severity === "warning" ? "wait" : ""), h("strong", {}, line(f.message, 400)), f.pointer ? h("code", {}, line(f.pointer, 100)) : null),
    f.fix ? h("p", {}, line(f.fix, 600)) : null, f.rule ? h("p.muted.small", {}, line(f.rule, 200)) : null)));
}

function resumeView(url, credentials) {
  const out = h("div");
  return h("div", {}, h("p", {}, "Starts a streaming task, drops the connection, and looks whether the agent goes on where it was."), button("Run the test", async (event) => {
    event.target.disabled = true;
    fill(out, h("p.muted", {}, "Running …"));
    try { fill(out, jsonTree(await post("inspect/resume", { url, credentials: credentials() }), { open: 3 })); } catch (error) { fill(out, h("p.error", { role: "alert" }, line(error.message, 400))); }
    event.target.disabled = false;
  }, { class: "primary" }), out);
}

// -- log in -----------------------------------------------------------------------------------------------------

const WAYS = [
  ["bearer", "Bearer token", [["token", "Token", "password"]]],
  ["apiKey", "API key", [["name", "Name of the header, query parameter or cookie", "text", "X-API-Key"], ["in", "Where (header, query, cookie)", "text", "header"], ["key", "Key", "password"]]],
  ["clientCredentials", "OAuth client credentials", [["tokenUrl", "Token URL", "url"], ["clientId", "Client id", "text"], ["clientSecret", "Client secret", "password"], ["scopes", "Scopes", "text"]]],
  ["deviceCode", "OAuth device code", [["clientId", "Client id", "text"], ["scopes", "Scopes", "text"]]],
  ["authorizationCode", "OAuth authorization code with PKCE", [["clientId", "Client id", "text"], ["scopes", "Scopes", "text"]]],
];

function loginDialog(url, card) {
  return new Promise((resolve) => {
    let handle = null;
    const way = h("select", { "aria-label": "How to log in", onchange: draw }, WAYS.map(([id, name]) => h("option", { value: id }, name)));
    const fields = h("div.fields"), said = h("p.error", { role: "alert" }), progress = h("div");
    const form = h("form", { onsubmit: submit }, h("div.field", {}, h("label", {}, "How to log in", way)), fields, said, progress, h("div.row.end", {}, h("button.button.primary", { type: "submit" }, "Log in")));
    function draw() {
      fill(fields, WAYS.find(([id]) => id === way.value)[2].map(([id, name, type, start]) => h("div.field", {}, h("label", { for: `login-${id}` }, name), h("input", { id: `login-${id}`, name: id, type, value: start || "", autocomplete: "off", spellcheck: "false" }))));
    }
    async function submit(event) {
      event.preventDefault();
      said.textContent = "";
      const values = Object.fromEntries([...fields.querySelectorAll("input")].map((i) => [i.name, i.value.trim()]));
      try {
        const made = await post("login", { url, kind: way.value, ...values });
        if (made.authorizeUrl) window.open(made.authorizeUrl, "_blank", "noopener,noreferrer");
        if (made.verificationUrl) fill(progress, h("p", {}, "Enter ", h("strong.mono", {}, line(made.userCode, 40)), " at ", h("code", {}, line(made.verificationUrl, 200))));
        handle = made.handle || made.credentials || null;
        const state = made.state || made.status;
        if (state === "pending") handle = await waitFor(handle, progress);
        box.close();
      } catch (error) { said.textContent = error.message; }
    }
    draw();
    const box = dialog("Log in at the agent", form);
    box.addEventListener("close", () => resolve(handle));
  });
}

async function waitFor(handle, progress) {
  progress.append(h("p.muted", {}, "Waiting for you to finish in the other tab …"));
  for (let n = 0; n < 150; n++) {
    const now = await get(`login/${segment(handle)}`);
    if ((now.state || now.status) === "ready") return handle;
    if ((now.state || now.status) === "failed") throw new Error(now.message || "The log in failed.");
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
  throw new Error("The log in took too long.");
}
