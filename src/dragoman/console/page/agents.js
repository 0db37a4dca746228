// Agents: each card as people read it, its skills with forms, its versions and bindings, and how it is doing.

import { get } from "./api.js";
import { badge, button, copyIcon, count, debounce, dict, empty, fill, h, line, link, list, pill, plural, segment, when } from "./dom.js";
import { prepareMessage } from "./chat.js";
import { jsonTree } from "./json.js";
import { markdown } from "./markdown.js";
import { schemaForm, skillSchemas } from "./schema.js";
import { choosesTenant, ofTenant, tenantNames, tenantSelect } from "./tenant_choice.js";

const REFRESH_MS = 5000;

export function agentsView(there, me) {
  const cards = h("div.cards");
  const detail = h("div.detail");
  const nodes = h("section.nodes");
  const search = h("input", { type: "search", placeholder: "Filter agents", "aria-label": "Filter agents", oninput: debounce(draw, 100) });
  const tenants = tenantSelect((name) => { location.hash = `agents${ofTenant(name)}`; });
  const overview = h("div.detail", {}, h("div.viewhead", {}, h("h1", {}, "Agents"), tenants, search), cards, nodes);
  const node = h("div.view", {}, overview, detail);
  let agents = null, chosen = there.rest[0] ?? null, drawn = "", tenant = tenantIn(there), loading = 0;

  function tenantIn(place) { return choosesTenant(me) ? place.query.get("tenant") || "" : ""; }

  async function load() {
    const mine = ++loading;
    try {
      if (choosesTenant(me)) {
        const names = await tenantNames();
        if (mine !== loading) return;
        if (!names.includes(tenant)) tenant = names[0] || "";
        if (document.activeElement !== tenants) tenants.show(names, tenant);
      }
      const found = (await get("agents", { tenant })).agents;
      if (mine !== loading) return; // another tenant is asked for
      agents = found.map((a) => ({ ...a, tenant }));
      draw();
    } catch (error) {
      if (!agents) fill(cards, empty("The agents could not be read", line(error.message, 300)));
      return;
    }
    try {
      drawNodes((await get("nodes")).nodes);
    } catch { /* a server without nodes */ }
  }

  function draw() {
    if (!agents) return;
    overview.hidden = chosen !== null;
    detail.hidden = chosen === null;
    if (chosen !== null) {
      const agent = agents.find((a) => a.id === chosen);
      const state = JSON.stringify([agent?.counts, agent?.running, agent?.error, agent?.card, agent?.skills]);
      if (state === drawn) return;
      if (drawn && detail.contains(document.activeElement) && document.activeElement.matches("input, textarea, select")) return;
      drawn = state;
      fill(detail, agent ? agentDetail(agent) : empty("No such agent", line(chosen, 100), h("a.button", { href: "#agents" }, "All agents")));
      return;
    }
    const wanted = search.value.trim().toLowerCase();
    const found = agents.filter((a) => !wanted || `${a.id} ${a.name} ${a.description}`.toLowerCase().includes(wanted));
    fill(cards, found.length ? found.map(agentCard) : empty(agents.length ? "No agent matches" : "No agents", agents.length ? "Change the filter." : "This server serves no agent yet."));
  }

  function drawNodes(found) {
    fill(nodes, h("h2", {}, plural(found.length, "node")), h("div.tablewrap", {}, h("table", {},
      h("thead", {}, h("tr", {}, ["Node", "Heartbeat", "Leases", ""].map((t) => h("th", { scope: "col" }, t)))),
      h("tbody", {}, found.map((n) => h("tr", {}, h("td.mono", {}, line(n.id, 60)), h("td", {}, when(n.heartbeat)),
        h("td.num", {}, count(n.leases)),
        h("td", {}, n.self ? pill("answers you") : null, n.expires && Date.parse(n.expires) < Date.now() ? pill("expired", "bad") : null)))))));
  }

  load();
  const timer = setInterval(load, REFRESH_MS);
  return {
    title: "Agents", node,
    update(next) {
      chosen = next.rest[0] ?? null;
      drawn = "";
      const other = tenantIn(next) || tenant;
      if (other !== tenant) { tenant = other; agents = null; load(); } else draw();
      return true;
    },
    close: () => clearInterval(timer),
  };
}

export function health(agent) {
  if (agent.error) return pill("cannot serve", "bad", line(agent.error, 300));
  return agent.running ? pill(`${count(agent.running)} running`, "busy") : pill("ready", "good");
}

function counts(agent) {
  return Object.entries(agent.counts || {}).filter(([, n]) => n).map(([state, n]) =>
    h("a.count", { href: `#tasks?agent=${segment(agent.id)}&state=${segment(state)}${ofTenant(agent.tenant, "&")}` }, badge(state), ` ${count(n)}`));
}

function agentCard(agent) {
  const skills = agent.skills || [];
  return h("article.card", {},
    h("div.cardhead", {}, h("h2", {}, h("a", { href: `#agents/${segment(agent.id)}${ofTenant(agent.tenant)}` }, line(agent.name, 80))), health(agent)),
    h("p.clamp", {}, line(agent.description, 300)),
    h("div.tags", {}, skills.slice(0, 6).map((s) => h("span.tag", { title: line(s.description, 200) }, line(s.name || s.id, 40))), skills.length > 6 ? h("span.muted", {}, `+${skills.length - 6}`) : null),
    h("div.row.wrap", {}, counts(agent)),
    h("div.cardfoot", {}, h("code", { title: line(agent.url, 300) }, line(agent.path || agent.url, 60)), h("a.button.small", { href: `#chat/${segment(agent.id)}${ofTenant(agent.tenant)}` }, "Chat")));
}

function agentDetail(agent) {
  const card = agent.card || {};
  return [
    h("nav.crumbs", { "aria-label": "Where you are" }, h("a", { href: `#agents${ofTenant(agent.tenant)}` }, "Agents"), " / ", line(agent.name, 60)),
    h("div.viewhead", {}, h("h1", {}, line(agent.name, 120)), health(agent), h("a.button.primary", { href: `#chat/${segment(agent.id)}${ofTenant(agent.tenant)}` }, "Chat"),
      h("a.button", { href: `#tasks?agent=${segment(agent.id)}${ofTenant(agent.tenant, "&")}` }, "Tasks")),
    agent.error ? h("p.error", { role: "alert" }, line(agent.error, 500)) : null,
    cardView(card, agent.interfaces, agent.url),
    counts(agent).length ? h("div.row.wrap", {}, counts(agent)) : null,
    h("h2", {}, plural((agent.skills || []).length, "skill")),
    h("div.skills", {}, (agent.skills || []).map((s) => skillView(s, { schemas: skillSchemas(card), send: (message) => {
      prepareMessage(agent.id, message);
      location.hash = `chat/${segment(agent.id)}${ofTenant(agent.tenant)}`;
    } }))),
    h("details.raw", {}, h("summary", {}, "The card as JSON"), jsonTree(card, { open: 1 })),
  ];
}

/** What a card says, for people: also used for cards of agents elsewhere. */
export function cardView(given, interfaces, url) {
  const card = dict(given);
  const offered = (list(interfaces).length ? interfaces : list(card.supportedInterfaces)).map(dict);
  const can = dict(card.capabilities), schemes = Object.keys(dict(card.securitySchemes)), provider = dict(card.provider);
  const facts = [
    ["Version", line(card.version, 60)],
    ["Provider", provider.organization || provider.url ? [line(provider.organization, 80), " ", provider.url ? link(line(provider.url, 60), provider.url) : null] : null],
    ["Address", url ? [h("code", {}, line(url, 200)), copyIcon(url, "the address")] : null],
    ["Takes", modes(card.defaultInputModes)],
    ["Gives", modes(card.defaultOutputModes)],
    ["Can", ["streaming", "pushNotifications", "extendedAgentCard"].filter((c) => can[c]).map((c) => pill({ streaming: "stream", pushNotifications: "push", extendedAgentCard: "extended card" }[c]))],
    ["Log in", schemes.length ? schemes.slice(0, 10).map((n) => pill(line(n, 40))) : "open"],
    ["Documentation", card.documentationUrl ? link(line(card.documentationUrl, 80), card.documentationUrl) : null],
    ["Signatures", list(card.signatures).length ? plural(card.signatures.length, "signature") : null],
  ].filter(([, value]) => value && (!Array.isArray(value) || value.length));
  return [
    h("div.prose", {}, markdown(String(card.description ?? "").slice(0, 20_000))),
    h("div.about", {}, h("dl.facts", {}, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      offered.length ? h("div.tablewrap", {}, h("table.interfaces", {}, h("thead", {}, h("tr", {}, ["Version", "Binding", "Address"].map((t) => h("th", { scope: "col" }, t)))),
      h("tbody", {}, offered.slice(0, 50).map((i) => h("tr", {}, h("td", {}, line(i.protocolVersion, 20)), h("td", {}, line(i.protocolBinding, 30)), h("td", {}, h("code", {}, line(i.url, 200)))))))) : null),
  ];
}

const modes = (names) => (list(names).length ? names.slice(0, 12).map((m) => h("code.mode", {}, line(m, 60))) : null);

/** One skill. Its examples and the form of its schema are given to `send`. */
export function skillView(given, { schemas = {}, send }) {
  const skill = dict(given), known = dict(Object.hasOwn(schemas, skill.id) ? schemas[skill.id] : null);
  const input = skill.inputSchema || known.input, output = skill.outputSchema || known.output;
  const examples = list(skill.examples).slice(0, 6);
  const go = (message) => send({ skill: skill.id, ...message });
  return h("article.skill", {},
    h("div.cardhead", {}, h("h3", {}, line(skill.name || skill.id, 80)), h("code.muted", {}, line(skill.id, 60))),
    h("p", {}, line(skill.description, 600)),
    list(skill.tags).length ? h("div.tags", {}, skill.tags.slice(0, 10).map((t) => h("span.tag", {}, line(t, 40)))) : null,
    examples.length ? h("div.examples", {}, h("span.muted", {}, "For example "), examples.map((e) =>
      button(line(e, 120), () => go({ text: String(e) }), { class: "small quiet" }))) : null,
    input ? skillForm(skill, input, go) : null,
    output ? h("details", {}, h("summary", {}, "What it returns"), jsonTree(output, { open: 3, copy: false })) : null);
}

function skillForm(skill, input, go) {
  const form = schemaForm(input, { name: skill.name || skill.id });
  const said = h("p.error", { role: "alert" });
  return h("details.skillform", {}, h("summary", {}, "Fill in its input"), h("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      said.textContent = "";
      try {
        const { value, files } = await form.read();
        go({ data: value, files, send: true });
      } catch (error) { said.textContent = error.message; }
    },
  }, form.node, said, h("button.button.primary", { type: "submit" }, "Send")));
}
