// The inspector: any agent at any address. Its card with findings, how it is called and why, chat, bytes, and log in.

import { get, post } from "./api.js";
import { button, clock, dialog, dict, empty, fill, h, line, link, list, pill, plural, segment, tabs, toast } from "./dom.js";
import { cardView, skillView } from "./agents.js";
import { Conversation } from "./chat.js";
import { jsonTree } from "./json.js";
import { skillSchemas } from "./schema.js";

let kept = null; // the agent that was looked at last

export function inspectView(there) {
  const body = h("div.inspectbody");
  const address = h("input.grow", { type: "text", inputmode: "url", placeholder: "https://agent.example.com", "aria-label": "Address of an agent", spellcheck: "false", value: there.query.get("url") || kept?.url || "" });
  const loginButton = button("Log in …", () => logIn(), { class: "quiet" });
  const said = h("span.muted");
  let credentials = kept?.credentials ?? null;
  const pick = (label, values) => h("select", { "aria-label": label, onchange: () => look() }, h("option", { value: "" }, `${label}: as the card says`), values.map((v) => h("option", { value: v }, v)));
  const version = pick("Version", ["1.0", "0.3", "0.2", "0.1"]), binding = pick("Binding", ["JSONRPC", "HTTP+JSON", "GRPC"]);
  const choice = () => ({ version: version.value || null, binding: binding.value || null });

  const node = h("div.view", {}, h("div.viewhead", {}, h("h1", {}, "Inspector")), h("form.row.wrap.inspectform", { onsubmit: (event) => { event.preventDefault(); look(); } }, address, h("button.button.primary", { type: "submit" }, "Inspect"), loginButton, said, h("details.choice", {}, h("summary", {}, "Version and binding"), h("div.row.wrap", {}, version, binding))), body);
  const showLogin = () => { said.textContent = credentials ? "logged in" : ""; };

  async function look() {
    const url = address.value.trim();
    if (!url) return;
    fill(body, h("p.muted", {}, "Reading the card …"));
    try {
      const found = await post("inspect", { url, credentials, ...choice() });
      kept = { url, credentials, found, talk: null };
      draw();
    } catch (error) { fill(body, empty("The agent could not be inspected", line(error.message, 600))); }
  }

  function draw() {
    const { url } = kept;
    const found = dict(kept.found), card = dict(found.card), at = dict(found.found);
    const findings = list(found.findings).map(dict);
    const serious = findings.filter((f) => f.severity === "error").length;
    let panels = null;
    kept.talk ??= new Conversation({ url, card, credentials: () => credentials, choice });
    fill(body,
      h("div.viewhead", {}, h("h2", {}, line(card.name || url, 100)), serious ? pill(plural(serious, "error"), "bad") : pill("card is valid", "good"), h("span.muted", {}, [line(at.path, 60), line(at.status, 10), at.version ? `A2A ${line(at.version, 20)}` : ""].filter(Boolean).join(" · "))),
      panels = tabs([
        ["card", "Card", () => h("div.detail", {}, found.problem ? h("p.error", { role: "alert" }, line(found.problem, 600)) : null, chosenView(dict(found.chosen)), cardView(card, found.interfaces, url), signature(found.signature), h("h3", {}, plural(list(card.skills).length, "skill")), h("div.skills", {}, list(card.skills).slice(0, 100).map((s) => skillView(s, { schemas: skillSchemas(card), send: (message) => { panels.select("chat"); kept.talk.draft(message); } }))))],
        ["findings", `Findings ${findings.length}`, () => findingsView(findings)],
        ["chat", "Chat", () => kept.talk.node],
        ["resume", "Resume test", () => resumeView({ url, credentials, ...choice() })],
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
  else get("inspect").then((given) => {
    if (!given.url || address.value) return;
    address.value = given.url;
    credentials = given.credentials ?? credentials;
    showLogin();
    look();
  }).catch(() => {});
  if (!there.query.get("url") && !kept) fill(body, empty("Any agent, of any version", "Give the address of an agent or of its card. The page shows what the card says, what is wrong with it, and every byte of a conversation."));
  return { title: "Inspector", node, update: (next) => { if (next.query.get("url")) { address.value = next.query.get("url"); look(); } return true; } };
}

/** How the agent is called, and why so. */
function chosenView(chosen) {
  if (!chosen.version) return null;
  return h("details.chosenas", {}, h("summary", {}, "Called in ", pill(`A2A ${line(chosen.version, 20)}`, "busy"), " ", pill(line(chosen.binding, 20), "busy"), " ", h("code", {}, line(chosen.url, 120))),
    h("ul", {}, list(chosen.why).slice(0, 20).map((w) => h("li", {}, line(w, 300)))));
}

function signature(found) {
  const { state, message } = dict(found);
  if (!state && !message) return null;
  return h("details", {}, h("summary", {}, "Signature ", pill(line(state, 20), state === "valid" ? "good" : state === "invalid" ? "bad" : ""), " ", line(message, 200)), jsonTree(found, { open: 2, copy: false }));
}

function findingsView(findings) {
  if (!findings.length) return empty("No findings", "The card keeps every rule that was checked.");
  return h("ul.findings", {}, findings.slice(0, 200).map((f) => h("li", { class: ["error", "warning", "info"].includes(f.severity) ? f.severity : "info" },
    h("div.row.wrap", {}, pill(line(f.severity, 10), f.severity === "error" ? "bad" : f.severity === "warning" ? "wait" : ""), h("strong", {}, line(f.message, 400)), f.pointer ? h("code", {}, line(f.pointer, 100)) : null),
    f.fix ? h("p", {}, line(f.fix, 600)) : null, f.rule ? h("p.muted.small", {}, line(f.rule, 200)) : null)));
}

function resumeView(body) {
  const out = h("div");
  return h("div", {}, h("p", {}, "Starts a streaming task, drops the connection, and looks whether the agent goes on where it was."), button("Run the test", async (event) => {
    event.target.disabled = true;
    fill(out, h("p.muted", {}, "Running …"));
    try { fill(out, resumeResult(dict(await post("inspect/resume", body)))); } catch (error) { fill(out, h("p.error", { role: "alert" }, line(error.message, 400))); }
    event.target.disabled = false;
  }, { class: "primary" }), out);
}

function resumeResult(result) {
  return h("div.detail", {}, h("div.row.wrap", {}, pill(result.ok ? "passed" : "failed", result.ok ? "good" : "bad"), h("strong", {}, line(result.message, 400))),
    h("ol.steps", {}, list(result.steps).slice(0, 50).map(dict).map((s) => h("li", {}, h("span.mono.muted", {}, clock(s.time)), " ", line(s.text, 400)))), jsonTree(result, { open: 1 }));
}

// -- log in -----------------------------------------------------------------------------------------------------

const WAYS = [
  ["bearer", "Bearer token", [["token", "Token", "password"]]],
  ["basic", "Name and password", [["name", "Name", "text"], ["password", "Password", "password"]]],
  ["apiKey", "API key", [["key", "Key", "password"], ["name", "Name of the header, query parameter or cookie (else as the card says)", "text"], ["location", "Where: header, query or cookie (else as the card says)", "text"]]],
  ["clientCredentials", "OAuth client credentials", [["clientId", "Client id", "text"], ["clientSecret", "Client secret", "password"], ["scopes", "Scopes", "text"], ["tokenUrl", "Token URL (else as the card says)", "url"]]],
  ["deviceCode", "OAuth device code", [["clientId", "Client id", "text"], ["scopes", "Scopes", "text"], ["deviceUrl", "Device URL (else as the card says)", "url"], ["tokenUrl", "Token URL (else as the card says)", "url"]]],
  ["authorizationCode", "OAuth authorization code with PKCE", [["clientId", "Client id", "text"], ["clientSecret", "Client secret, if it has one", "password"], ["scopes", "Scopes", "text"], ["authorizationUrl", "Authorization URL (else as the card says)", "url"], ["tokenUrl", "Token URL (else as the card says)", "url"]]],
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
        if (made.state === "failed") throw new Error(made.message || "The login failed.");
        if (made.authorizeUrl) fill(progress, h("p", {}, "Log in at ", link(line(made.authorizeUrl, 80), made.authorizeUrl), ". It opens in another tab."));
        if (made.verificationUrl) fill(progress, h("p", {}, "Enter ", h("strong.mono", {}, line(made.userCode, 40)), " at ", link(line(made.verificationUrl, 80), made.verificationUrl)));
        if (made.state === "pending") await waitFor(made.handle, progress, () => box.open);
        handle = made.handle;
        box.close();
      } catch (error) { said.textContent = error.message; }
    }
    draw();
    const box = dialog("Log in at the agent", form);
    box.addEventListener("close", () => resolve(handle));
  });
}

async function waitFor(handle, progress, wanted) {
  progress.append(h("p.muted", {}, "Waiting for you to finish there …"));
  while (wanted()) {
    const now = await get(`login/${segment(handle)}`);
    if (now.state === "ready") return;
    if (now.state === "failed") throw new Error(now.message || "The login failed.");
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  throw new Error("The login was not finished.");
}
