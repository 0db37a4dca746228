// The tenants of a hub: of which one an operator sees the agents and tasks. A tenant sees itself, and other servers have none.

import { get } from "./api.js";
import { fill, h, line, segment } from "./dom.js";

export const choosesTenant = (me) => me?.kind === "hub" && me.role === "operator";

/** The names of the tenants that may be used now. */
export async function tenantNames() {
  return (await get("hub/admin/tenants")).tenants.filter((t) => !t.disabled).map((t) => String(t.name));
}

/** A select of tenants. `every` is the label of "all of them", if that can be chosen. */
export function tenantSelect(onchange, every = "") {
  const select = h("select", { "aria-label": "Tenant", hidden: true, onchange: () => onchange(select.value) });
  select.show = (names, chosen) => {
    fill(select, every ? h("option", { value: "" }, every) : null, names.map((n) => h("option", { value: n, selected: n === chosen }, line(n, 60))));
    select.value = chosen;
    select.hidden = names.length < 2;
  };
  return select;
}

/** The end of a link to a page about a tenant's agent. */
export const ofTenant = (tenant, sign = "?") => (tenant ? `${sign}tenant=${segment(tenant)}` : "");

/** Whose a task is, for people: the tenant, and the caller unless it is the tenant itself. */
export function whose(row) {
  const [key, ...rest] = String(row.scope ?? "").split("/"), owner = rest.join("/");
  return [row.tenant ?? key, owner === key ? "" : owner].filter(Boolean).join(" / ");
}
