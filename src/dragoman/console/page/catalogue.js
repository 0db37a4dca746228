// The catalogue: the agents of this server, of its bridges, and those that the operator registered. Search, health, signature.

import { del, get, post } from "./api.js";
import { button, confirmed, copyIcon, debounce, dialog, empty, failure, fill, h, line, list, pill, plural, segment, toast, when } from "./dom.js";
import { table } from "./panel.js";

const HEALTH = new Map([["up", "good"], ["down", "bad"]]);
const SIGNATURE = new Map(Object.entries({ valid: ["good", "A key of the agent's own host signed the card."], invalid: ["bad", "The signature does not match the card."],
  unsigned: ["", "The card has no signature."], unknown: ["wait", "There is a signature, and no key to check it with."] }));

export function catalogueView(there, me) {
  const operator = me.role === "operator";
  const text = h("input", { type: "search", placeholder: "What should the agent do?", "aria-label": "Search the catalogue", value: there.query.get("text") || "", oninput: debounce(load) });
  const note = h("p.muted", { role: "status", "aria-live": "polite" });
  const body = h("div");
  const node = h("div.view", {}, h("div.viewhead", {}, h("h1", {}, "Catalogue"), text, operator ? button("Register an agent", register, { class: "primary" }) : null), note, body);
  let asked = 0;

  async function load() {
    const mine = ++asked;
    try {
      const { agents, total } = await get("catalogue", { text: text.value.trim() });
      if (mine !== asked) return;  // an answer to an older text
      note.textContent = total > agents.length ? `The best ${agents.length} of ${plural(total, "agent")}` : plural(total, "agent");
      fill(body, agents.length ? table("Agents of the catalogue", ["Agent", "Version", "Health", "Signature", "Skills", ""], agents.map(row)) : text.value.trim() ? empty("Nothing matches", "Try other words: names, skills, tags and descriptions are searched.") : empty("No agents", "Register one, or serve some."));
    } catch (error) { if (mine === asked) fill(body, empty("The catalogue could not be read", line(error.message, 300))); }
  }

  function row(agent) {
    const about = agent.description || {};
    const health = agent.health || {}, [tone, why] = SIGNATURE.get(agent.signature) || SIGNATURE.get("unknown");
    const skills = list(about.skills).map((skill) => line(skill?.name || skill?.id, 40));
    return h("tr", { data: { agent: line(agent.name, 100) } },
      h("td.grow", { data: { label: "Agent" } },
        h("strong", {}, line(agent.title, 100)), " ", h("span.mono.small.muted", {}, line(agent.name, 80)), " ",
        agent.kind === "agent" ? null : pill(line(agent.kind, 20)), " ", agent.private && !agent.tenant ? pill("private", "wait", "Not shown to everybody") : null, " ", agent.tenant ? pill(`tenant ${line(agent.tenant, 40)}`) : null,
        about.description ? h("div.small", {}, line(about.description, 200)) : null,
        h("div.small.muted", {}, h("code", {}, line(agent.url, 120)), " ", copyIcon(agent.url, "the address"))),
      h("td.nowrap", { data: { label: "Version" } }, line(about.version, 30) || "–"),
      h("td", { data: { label: "Health" } }, pill(line(health.state, 20) || "unknown", HEALTH.get(health.state) || "wait"),
        health.checked ? h("div.small.muted", {}, "checked ", when(health.checked)) : null,
        health.error ? h("div.small.errortext", {}, line(health.error, 200)) : null),
      h("td", { data: { label: "Signature" } }, pill(line(agent.signature, 20), tone, why)),
      h("td", { data: { label: "Skills" } }, skills.length ? h("span.small", {}, skills.slice(0, 4).join(", "), skills.length > 4 ? ` and ${skills.length - 4} more` : "") : "–"),
      h("td.nowrap", {}, operator && agent.kind === "registered" ? [
        button("Check", act(() => post(`${place(agent)}/check${tenant(agent)}`), "Checked."), { class: "small", "aria-label": `Check ${line(agent.name, 80)}` }), " ",
        button("Remove", async (event) => {
          if (await confirmed("Remove this agent?", `${line(agent.title, 80)} is no longer found. The agent itself is not touched.`, "Remove it")) act(() => del(place(agent) + tenant(agent)), "Removed.")(event);
        }, { class: "small quiet", "aria-label": `Remove ${line(agent.name, 80)}` })] : null));
  }

  const place = (agent) => `catalogue/${segment(agent.name)}`;
  const tenant = (agent) => (agent.tenant ? `?tenant=${segment(agent.tenant)}` : "");
  const act = (work, said) => async (event) => {
    const pressed = event.currentTarget || event.target;
    pressed.disabled = true;
    try { await work(); toast(said); await load(); } catch (error) { failure(error); }
    pressed.disabled = false;
  };

  function register() {
    const field = (label, hint, input) => h("div.field", {}, h("label", { for: input.id }, label), input, h("span.hint", {}, hint));
    const url = h("input#register-url", { type: "url", required: true, placeholder: "https://agent.example.com", maxlength: "2048" });
    const name = h("input#register-name", { type: "text", maxlength: "63", spellcheck: "false" });
    const whose = me.kind === "hub" ? h("input#register-tenant", { type: "text", maxlength: "100" }) : null;
    const hidden = h("input#register-private", { type: "checkbox" });
    const said = h("p.error", { role: "alert" });
    const go = h("button.button.primary", { type: "submit" }, "Register");
    const form = h("form.fields", { onsubmit: async (event) => {
      event.preventDefault();
      said.textContent = "";
      go.disabled = true;
      try {
        const added = await post("catalogue", { url: url.value.trim(), name: name.value.trim(), tenant: whose?.value.trim() || "", private: hidden.checked });
        box.close();
        toast(`Registered ${line(added.name, 80)}: ${line(added.health?.state, 20)}`);
        await load();
      } catch (error) { said.textContent = line(error.message, 300); }
      go.disabled = false;
    } }, field("URL", "Where the agent is. Its card is read now, and every few minutes.", url), field("Name", "In the catalogue; empty: from its card.", name),
    whose ? field("Tenant", "Only this tenant finds it; empty: all do.", whose) : null,
    h("div.field.check", {}, hidden, h("label", { for: hidden.id }, "Private"), h("span.hint", {}, "Only callers that an agent of this server accepts find it.")), said, go);
    const box = dialog("Register an agent", form);
    url.focus();
  }

  load();
  const timer = setInterval(() => { if (!body.contains(document.activeElement)) load(); }, 15000);
  return { title: "Catalogue", node, close() { clearInterval(timer); } };
}
