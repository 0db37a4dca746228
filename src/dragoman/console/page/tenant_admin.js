// The tenants of a hub, for its operator; and of one tenant, its tokens, what it may use and store, export and delete. A tenant manages
// its own tokens, with a token that has the scope admin.

import { del, get, patch, post } from "./api.js";
import { block, button, bytes, confirmed, copyButton, count, dialog, empty, failure, h, line, list, pill, plural, segment, toast } from "./dom.js";
import { act, at, cell, panel, table, until } from "./panel.js";

const DAY = 86_400;
const ENDS = [["90 days", 90 * DAY], ["1 day", DAY], ["7 days", 7 * DAY], ["30 days", 30 * DAY], ["1 year", 365 * DAY], ["never", 0]];
const OVERLAPS = [["1 day", DAY], ["1 hour", 3600], ["7 days", 7 * DAY], ["30 days", 30 * DAY], ["not at all", 0]];

const choice = (label, options) => h("select", { "aria-label": label }, options.map(([name, value]) => h("option", { value: String(value) }, name)));
const field = (label, input, hint) => h("label.field", {}, h("span", {}, label), input, hint ? h("span.hint", {}, hint) : null);

/** A secret, which nobody can see again. Only its buttons close the dialog. */
function showSecret(secret, why) {
  const box = dialog("A new token", [h("p", {}, why), block(secret, { tag: "pre.text.address" }), h("p.muted", {}, "It is shown only here, and only now.")],
    [copyButton(secret), button("I have stored it", () => box.close(), { class: "primary" })], { stays: true });
}

// -- all tenants ------------------------------------------------------------------------------------------------

export function tenantList() {
  const name = h("input", { type: "text", placeholder: "Name", "aria-label": "Name of the new tenant", maxlength: "100", required: true });
  const found = panel(async (again) => {
    const { tenants: all } = await get("hub/admin/tenants");
    const gone = (await get("hub/admin/deletions")).deletions.filter((d) => !d.done_at);
    return { state: [all, gone], busy: gone.length > 0, content: [
      gone.length ? h("p.notice", { role: "status" }, `${plural(gone.length, "deleted tenant")}: what is stored of it is being removed.`) : null,
      all.length ? table("Tenants", ["Tenant", "State", "Last used", "Requests at once", "Requests a minute", ""], all.map((t) => tenantRow(t, again))) : empty("No tenants", "Create one: its token lets it call agents."),
    ] };
  });
  const form = h("form.row.wrap", { onsubmit: async (event) => {
    event.preventDefault();
    try {
      const { token } = await post("hub/admin/tenants", { name: name.value });
      name.value = "";
      showSecret(token, "The tenant's callers send it as a bearer token.");
      found.redraw();
    } catch (error) { failure(error); }
  } }, name, h("button.button.primary", { type: "submit" }, "Create a tenant"), h("span.grow"), button("Rotate the admin token", rotateAdmin, { class: "quiet" }));
  return h("div.stackview", {}, form, found);
}

function tenantRow(t, again) {
  const one = `hub/admin/tenants/${t.id}`, to = `#hub/${segment(t.name)}`;
  const limit = (member, label) => {
    const input = h("input.short", { type: "number", min: "0", value: t[member] ?? "", placeholder: "default", "aria-label": `${label} of ${line(t.name, 40)}` });
    input.addEventListener("change", act(() => patch(one, { [member]: input.value === "" ? null : Number(input.value) }), null, "The limit is changed."));
    return input;
  };
  return h("tr", {},
    cell("Tenant", h("a", { href: to }, line(t.name, 80)), { class: "grow" }),
    cell("State", t.disabled ? pill("disabled", "bad") : pill("enabled", "good")),
    cell("Last used", at(t.last_used_at)),
    cell("Requests at once", limit("max_concurrent", "Requests at once")), cell("Requests a minute", limit("rate_per_min", "Requests a minute")),
    cell("", [button(t.disabled ? "Enable" : "Disable", disable(one, t, again), { class: "small" }), " ", h("a.button.small.quiet", { href: `${to}/tokens` }, "Tokens"), " ", h("a.button.small.quiet", { href: `${to}/policy` }, "Policy")], { class: "nowrap" }));
}

const disable = (one, t, again) => async () => {
  if (!t.disabled && !(await confirmed("Disable this tenant?", "What runs for it stops, and its tokens are refused until it is enabled again.", "Disable it"))) return;
  act(() => patch(one, { disabled: !t.disabled }), again)();
};

// -- tokens of one tenant ---------------------------------------------------------------------------------------

const SCOPES = { read: "see everything of the tenant", run: "also use its agents", admin: "also change agents and tokens" };

/** `one` is the part of the API that manages the tenant: `hub/admin/tenants/{id}` for an operator, else `hub/tenants/{name}`. */
export function tokens(one) {
  const name = h("input", { type: "text", required: true, maxlength: "100", placeholder: "ci" });
  const scope = h("select", {}, Object.entries(SCOPES).map(([id, may]) => h("option", { value: id, selected: id === "run" }, `${id}: ${may}`)));
  const ends = choice("Valid for", ENDS), revoked = h("input", { type: "checkbox", onchange: () => found.redraw() });
  const found = panel(async (again) => {
    const { tokens: all } = await get(`${one}/tokens`, revoked.checked ? { revoked: "true" } : {});
    return { state: all, content: all.length ? table("Tokens", ["Token", "Scope", "State", "Last used", "Created", ""], all.map((t) => tokenRow(one, t, again))) : empty("No tokens", "Nobody can call the agents of this tenant.") };
  });
  const form = h("form.filters.end", { "aria-label": "New token", onsubmit: async (event) => {
    event.preventDefault();
    try {
      const { secret } = await post(`${one}/tokens`, { name: name.value, scope: scope.value, ...(Number(ends.value) ? { expires_in: Number(ends.value) } : {}) });
      name.value = "";
      showSecret(secret, "Callers send it as a bearer token.");
      found.redraw();
    } catch (error) { failure(error); }
  } }, field("Name of the new token", name), field("It may", scope), field("Valid for", ends), h("button.button.primary", { type: "submit" }, "Create a token"));
  return h("div.stackview", {}, form, h("label.check", {}, revoked, " Show revoked ones"), found);
}

function tokenState(t) {
  const now = Date.now() / 1000, over = t.expires_at && t.expires_at <= now;
  if (t.revoked) return pill(t.kind === "user" ? "shut out" : "revoked", "bad");
  if (over) return pill("expired", "bad");
  return [t.replaced ? pill("replaced", "wait") : pill("valid", "good"), h("div.small.muted", {}, t.expires_at ? ["ends ", at(t.expires_at, until)] : t.kind === "user" ? "" : "never ends")];
}

function tokenRow(one, t, again) {
  const path = `${one}/tokens/${t.id}`, user = t.kind === "user", valid = !t.revoked && !(t.expires_at && t.expires_at <= Date.now() / 1000);
  const revoke = async () => {
    const what = user ? ["Shut this user out?", "Shut out"] : ["Revoke this token?", "Revoke it"];
    if (await confirmed(what[0], `${line(t.name, 100)} is refused at once, what it began stops, and its schedules are paused.`, what[1])) act(() => del(path), again, user ? "The user is shut out." : "The token is revoked.")();
  };
  return h("tr", {},
    cell("Token", [h("strong", {}, line(t.name, 100)), " ", user ? pill("user") : null], { class: "grow" }),
    cell("Scope", line(t.scope, 20)), cell("State", tokenState(t)), cell("Last used", at(t.last_used_at)),
    cell("Created", [at(t.created_at), h("div.small.muted", {}, `by ${line(t.created_by, 60)}`)]),
    cell("", [
      valid && !user && !t.replaced ? [button("Rotate", () => rotate(path, t, again), { class: "small", "aria-label": `Rotate ${line(t.name, 60)}` }), " "] : null,
      valid || (user && !t.revoked) ? button(user ? "Shut out" : "Revoke", revoke, { class: "small danger", "aria-label": `${user ? "Shut out" : "Revoke"} ${line(t.name, 60)}` }) : null,
      user && t.revoked ? button("Let in again", act(() => patch(path, { revoked: false }), again, "The user may act again."), { class: "small" }) : null,
    ], { class: "nowrap" }));
}

function rotate(path, t, again) {
  const ends = choice("The new token is valid for", t.expires_at ? [["as long as the old one", 0], ...ENDS.slice(0, -1)] : ENDS);
  rotation(line(t.name, 60), "A new token of the same name and scope takes its place. If the old one does not stay valid, what it began stops.", async (overlap) => {
    const { secret } = await post(`${path}/rotate`, { ...overlap, ...(Number(ends.value) ? { expires_in: Number(ends.value) } : {}) });
    again();
    return secret;
  }, field("The new token is valid for", ends));
}

/** Sessions of operators end with the admin token, so this one begins again with the new token. */
function rotateAdmin() {
  rotation("the admin token", "A new token takes its place. Operators log in to this console again, with the new one, or with the old one while that is valid.", async (overlap) => {
    const { token } = await post("hub/admin/rotate-token", overlap);
    post("session", { token }).catch(failure);
    return token;
  });
}

/** Asks how long the old token stays valid, and shows the new one, which `make` returns. */
function rotation(name, why, make, more) {
  const overlap = choice("The old token stays valid for", OVERLAPS);
  const box = dialog(`Rotate ${name}`, h("form.stackview", { onsubmit: async (event) => {
    event.preventDefault();
    try {
      const secret = await make({ overlap_seconds: Number(overlap.value) });
      box.close();
      showSecret(secret, Number(overlap.value) ? `The old one is valid for ${overlap.selectedOptions[0].textContent} more.` : "The old one is refused from now on.");
    } catch (error) { failure(error); }
  } }, h("p", {}, why), field("The old token stays valid for", overlap), more, h("div.row.end", {}, h("button.button.primary", { type: "submit" }, "Rotate it"))));
}

// -- policy -----------------------------------------------------------------------------------------------------

const MB = 1 << 20;
const size = (n) => (n < MB ? bytes(n) : `${count(Math.round((10 * n) / MB) / 10)} MB`);
// what is stored, as people say it; its count; the most of it that a policy says
const STORED = [
  ["Agents", (s) => s.agents, (p) => p.max_agents],
  ["Versions of agents", (s) => s.versions, (p) => 20 * p.max_versions],
  ["Conversations", (s) => s.conversations, (p) => p.max_conversations],
  ["Memory entries", (s) => s.memories, (p) => p.max_memories],
  ["Files", (s) => s.artifacts, (p) => p.max_artifacts],
  ["Size of files", (s) => s.artifact_bytes, (p) => p.max_artifact_mb * MB, size],
  ["Scratchpads", (s) => s.scratchpads, (p) => p.max_scratchpads],
  ["Size of scratchpads", (s) => s.scratchpad_bytes, (p) => p.max_scratchpad_mb * MB, size],
  ["Todos", (s) => s.todos, (p) => p.max_todos],
  ["Schedules", (s) => s.schedules, (p) => p.max_schedules],
  ["Requests", (s) => s.requests, () => 0],
  ["Size of requests", (s) => s.request_bytes, (p) => p.max_request_mb * MB, size],
];
// member of a policy, its name, what it says
const MEMBERS = [
  ["models", "Models", "that agents may name beside the hub's own; * is any"],
  ["remotes", "Agents elsewhere", "that its agents see"],
  ["mcp_servers", "MCP servers", "that its agents see"],
  ["approve", "Commands that ask first", "such as /exec; none: no command asks"],
  ["tokens_per_day", "Tokens of models a day", "0: no limit"],
  ["cost_per_day", "Money a day", "in the currency of the hub's prices; 0: no limit"],
  ["reads_per_min", "Reads a minute", "requests that start nothing"],
  ["max_open_requests", "Open requests", "at one hub at the same time, with streams"],
  ["max_agents", "Agents", ""],
  ["max_versions", "Versions of an agent", ""],
  ["max_conversations", "Conversations", ""],
  ["max_messages", "Messages of a conversation", ""],
  ["max_conversation_mb", "MB of a conversation", ""],
  ["max_memories", "Memory entries", ""],
  ["max_artifacts", "Files", ""],
  ["max_artifact_mb", "MB of files", ""],
  ["max_scratchpads", "Scratchpads", ""],
  ["max_scratchpad_mb", "MB of scratchpads", ""],
  ["max_request_mb", "MB of requests", "their messages, events and results"],
  ["max_todos", "Todos", ""],
  ["max_schedules", "Schedules", ""],
];

const words = (value) => (Array.isArray(value) ? value.map(String).join(" ") || "none" : String(value));

/** How much of a limit is used, as a bar beside the words that say it. */
function used(now, most, text) {
  const share = most ? Math.min(1, now / most) : 0;
  const bar = h("i", { class: share >= 1 ? "bad" : share >= 0.8 ? "wait" : "" });
  bar.style.width = `${Math.round(100 * share)}%`;
  return h("div.used", {}, text ? h("span", {}, text) : null, most ? h("div.usedbar", { "aria-hidden": "true" }, bar) : null);
}

export function policy(one, operator) {
  const facts = panel(async () => {
    const { policy: now, today, stored } = await get(`${one}/policy`);
    const of = (name, value, most, show = count) => h("div", {}, h("dt", {}, name), h("dd", {}, used(value, most, most ? `${show(value)} of ${show(most)}` : `${show(value)}, no limit`)));
    const money = (n) => (n ? Number(n).toFixed(n < 1 ? 4 : 2) : "0");
    return { state: [now, today, stored], content: [
      h("h2", {}, "Used today (UTC)"),
      h("dl.strip", {}, of("Tokens of models", today.tokens, now.tokens_per_day), of("Money", today.cost, now.cost_per_day, money)),
      h("h2", {}, "May use"),
      h("dl.facts", {}, MEMBERS.slice(0, 4).map(([member, name]) => [h("dt", {}, name), h("dd", {}, list(now[member]).length ? now[member].map((w) => [h("code", {}, line(w, 100)), " "]) : member === "models" ? "the hub's own" : "none")])),
      h("h2", {}, "Stored"),
      table("Stored", ["What", "Stored", "At most", ""], STORED.map(([name, countOf, mostOf, show = count]) => {
        const n = countOf(stored), most = mostOf(now);
        return h("tr", {}, cell("What", name, { class: "grow" }), cell("Stored", show(n), { class: "num" }), cell("At most", most ? show(most) : "no limit", { class: "num" }), cell("", most ? used(n, most, n >= most ? "full" : "") : ""));
      })),
    ] };
  });
  if (!operator) return facts;
  // the form is not read again by itself: that would take away what somebody typed
  const form = panel(async (again) => {
    const { own } = await get(`${one}/policy`), { policy: hub } = await get("hub/admin/policy");
    return { content: policyForm(one, hub, own, () => { again(); facts.redraw(); }) };
  }, { refresh: false });
  return h("div.stackview", {}, facts, form);
}

function policyForm(one, hub, own, again) {
  const inputs = MEMBERS.map(([member, name, hint]) => {
    const isList = Array.isArray(hub[member]), text = member in own ? words(own[member]) : "";
    const input = h("input", { type: isList ? "text" : "number", min: isList ? null : "0", step: member === "cost_per_day" ? "any" : isList ? null : "1", value: text, placeholder: words(hub[member]), spellcheck: "false" });
    return { member, isList, text, input, node: field(name, input, hint) };
  });
  return h("form.stackview", { "aria-label": "Policy of this tenant", onsubmit: async (event) => {
    event.preventDefault();
    const changes = {};
    for (const { member, isList, text, input } of inputs) {
      if (input.value.trim() === text) continue;
      changes[member] = input.value.trim() === "" ? null : isList ? input.value.trim().split(/[\s,]+/) : Number(input.value);
    }
    if (!Object.keys(changes).length) return toast("Nothing is changed.");
    act(() => patch(`${one}/policy`, changes), again, "The policy is changed, from now on.")();
  } }, h("h2", {}, "Change it"), h("p.muted", {}, "An empty field means: as the hub says, which is shown in it. Several words have spaces between them."),
  h("div.policyfields", {}, inputs.map((i) => i.node)), h("div.row", {}, h("button.button.primary", { type: "submit" }, "Save")));
}

// -- the tenant itself ------------------------------------------------------------------------------------------

export function tenantSettings(one, named, operator) {
  const fileName = `${String(named).replace(/[^\w. -]/g, "_")}.zip`;
  const exported = h("section.stackview", {}, h("h2", {}, "Export"), h("p", {}, "Everything of the tenant as a ZIP archive: agents, tasks, conversations, memory, files, schedules. It has no tokens and no secrets of webhooks."),
    h("div.row", {}, h("a.button", { href: `api/${one}/export`, download: fileName }, "Save the archive")));
  if (!operator) return h("div.stackview", {}, exported);
  return panel(async (again) => {
    const { tenant: t } = await get(one);
    const path = `hub/admin/tenants/${t.id}`;
    const name = h("input", { type: "text", value: t.name, maxlength: "100", required: true, "aria-label": "New name" });
    const rename = async (event) => {
      event.preventDefault();
      try { const { tenant } = await patch(path, { name: name.value }); toast("The tenant is renamed."); location.hash = `hub/${segment(tenant.name)}/tenant`; } catch (error) { failure(error); }
    };
    const replace = async () => {
      if (!(await confirmed("Replace all tokens?", "All tokens are replaced by one with the scope admin. What runs under the old ones stops, and its callers need the new one.", "Replace them"))) return;
      try { showSecret((await post(`${path}/rotate-token`)).token, "The old tokens are refused from now on."); } catch (error) { failure(error); }
    };
    return { content: [
      h("section.stackview", {}, h("h2", {}, "Name"), h("form.row.wrap", { onsubmit: rename }, name, h("button.button", { type: "submit" }, "Rename"))),
      h("section.stackview", {}, h("h2", {}, "State"), h("div.row.wrap", {}, t.disabled ? pill("disabled", "bad") : pill("enabled", "good"), button(t.disabled ? "Enable" : "Disable", disable(path, t, again)), button("Replace all tokens", replace))),
      exported,
      h("section.stackview", {}, h("h2", {}, "Delete"), h("p", {}, "The tenant is shut out at once, and everything that it has is removed. Nothing brings it back."),
        h("div.row", {}, button("Delete this tenant …", () => remove(path, t), { class: "danger" }))),
    ] };
  }, { refresh: false });
}

/** Deletes a tenant after its name was typed. */
function remove(path, t) {
  const typed = h("input", { type: "text", autocomplete: "off", spellcheck: "false", "aria-label": "Name of the tenant" });
  const go = h("button.button.danger", { type: "submit", disabled: true }, "Delete it with everything it has");
  typed.addEventListener("input", () => (go.disabled = typed.value !== t.name));
  const box = dialog("Delete this tenant?", h("form.stackview", { onsubmit: async (event) => {
    event.preventDefault();
    if (typed.value !== t.name) return;
    try { await del(path); box.close(); toast("The tenant is deleted."); location.hash = "hub"; } catch (error) { failure(error); }
  } }, h("p", {}, "Its agents, tasks, conversations, memory, files, schedules and tokens are removed. To go on, type its name: ", h("strong", {}, line(t.name, 100))),
  typed, h("div.row.end", {}, button("Keep it", () => box.close(), { class: "quiet" }), go)));
  typed.focus();
}
