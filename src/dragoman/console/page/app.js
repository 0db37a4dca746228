// The frame of the console: log in, the menu, and which view is shown. A view is a function of (place, me) that returns
// {title, node, close()}.

import { ApiError, connectionState, del, get, onConnection, post, probe } from "./api.js";
import { button, empty, failure, fill, h, icon, iconButton, line, toast } from "./dom.js";
import { agentsView } from "./agents.js";
import { auditView } from "./audit.js";
import { catalogueView } from "./catalogue.js";
import { chatView } from "./chat.js";
import { followReloads } from "./dev.js";
import { hubView } from "./hub.js";
import { inspectView } from "./inspect.js";
import { metricsView } from "./metrics.js";
import { taskView } from "./task.js";
import { tasksView } from "./tasks.js";
import { webhooksView } from "./webhooks.js";

// id, name, the features of the server that it needs, view.
const VIEWS = [
  ["agents", "Agents", "agents", agentsView],
  ["chat", "Chat", "agents talk", chatView],
  ["tasks", "Tasks", "tasks", tasksView],
  ["catalogue", "Catalogue", "catalogue", catalogueView],
  ["hub", "Hub", "hub", hubView],
  ["webhooks", "Webhooks", "webhooks", webhooksView],
  ["audit", "Audit", "audit", auditView],
  ["metrics", "Metrics", "audit", metricsView],
  ["inspect", "Inspector", "inspect", inspectView],
];
const HIDDEN_VIEWS = { task: ["Task", "tasks", taskView] };

const root = document.getElementById("app");
let me = null, shown = null, banner = null, main = null, menu = null;

// -- which place the address names: #tasks/KEY?state=... ----------------------------------------------------------

export function place() {
  const [path, search = ""] = location.hash.slice(1).split("?");
  const [view = "", ...rest] = path.split("/");
  return { view, rest: rest.map(safeDecode), query: new URLSearchParams(search) };
}

function safeDecode(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

// -- theme ------------------------------------------------------------------------------------------------------

const THEMES = ["auto", "light", "dark"];
function theme() {
  try { return THEMES.includes(localStorage.theme) ? localStorage.theme : "auto"; } catch { return "auto"; }
}
function applyTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
}
applyTheme(theme());

function themeSwitch() {
  const node = iconButton("auto", "Theme", () => {
    const name = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
    try { localStorage.theme = name; } catch { /* this page only */ }
    applyTheme(name);
    show();
  });
  function show() {
    const name = theme();
    fill(node, icon({ auto: "auto", light: "sun", dark: "moon" }[name]));
    node.title = `Theme: ${name === "auto" ? "as the system" : name}`;
    node.setAttribute("aria-label", node.title);
  }
  show();
  return node;
}

// -- log in -----------------------------------------------------------------------------------------------------

async function logIn(token) {
  await post("session", { token });
}

function loginForm(problem) {
  closeView();
  me = null;
  const input = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true, spellcheck: "false" });
  const said = h("p.error", { role: "alert" }, problem || "");
  const form = h("form.login", {
    onsubmit: async (event) => {
      event.preventDefault();
      said.textContent = "";
      try {
        await logIn(input.value.trim());
        await start();
      } catch (error) {
        said.textContent = error.message;
        input.select();
      }
    },
  },
  h("div.brand", {}, h("img", { src: "icon.svg", alt: "", width: 32, height: 32 }), h("h1", {}, "Dragoman console")),
  h("p.muted", {}, "The address that the server printed works once. After that, log in with the operator token, which is in a file beside the server's store (its name ends in -console). On a hub that is the admin token, or the token of a tenant."),
  h("label", { for: "token" }, "Token"), input, said,
  h("button.button.primary", { type: "submit" }, "Log in"));
  fill(root, h("main#main.center", { tabindex: "-1" }, form));
  document.title = "Log in · Dragoman";
  input.focus();
}

/** The one-time token of the printed address; it leaves the address bar at once. */
function takeToken() {
  const match = /^#token=(.+)$/.exec(location.hash);
  if (!match) return null;
  history.replaceState(null, "", location.pathname + location.search);
  return safeDecode(match[1]);
}

// -- the frame --------------------------------------------------------------------------------------------------

const has = (wanted) => wanted.split(" ").every((feature) => me.features.includes(feature));

function frame() {
  menu = h("nav.menu", { "aria-label": "Main" }, VIEWS.filter(([, , feature]) => has(feature)).map(([id, name]) =>
    h("a.item", { href: `#${id}`, data: { view: id } }, icon(id), h("span", {}, name))));
  banner = h("div.banner", { role: "status", "aria-live": "polite", hidden: true });
  main = h("main#main", { tabindex: "-1" });
  fill(root, h("div.frame", {},
    h("header.side", {},
      h("a.brand", { href: "#" + VIEWS.find(([, , f]) => has(f))?.[0] }, h("img", { src: "icon.svg", alt: "", width: 24, height: 24 }), h("strong", {}, "Dragoman")),
      menu,
      h("div.foot", {},
        h("div.who", { title: `Dragoman ${me.version}` }, me.tenant ? `tenant ${line(me.tenant, 40)}` : line(me.kind, 20), h("span.muted", {}, ` ${line(me.version, 20)}`)),
        h("div.row", {}, themeSwitch(), iconButton("out", "Log out", async () => { await del("session").catch(() => {}); loginForm("You are logged out."); })))),
    h("div.content", {}, banner, main)));
}

let retry = null;
onConnection((state) => {
  clearInterval(retry);
  if (!banner) return;
  banner.className = "banner";
  if (state === "offline") {
    banner.hidden = false;
    banner.classList.add("bad");
    fill(banner, h("span", {}, "The server does not answer. Tasks are stored; this page goes on when it is back."), button("Try now", probe, { class: "small" }));
    retry = setInterval(probe, 1500);
  } else if (state === "denied") {
    loginForm("Your session has ended. Log in again.");
  } else if (!banner.hidden) {
    banner.classList.add("good");
    fill(banner, "The server is back.");
    setTimeout(() => { if (connectionState() === "online") banner.hidden = true; }, 3000);
    window.dispatchEvent(new Event("serverback"));
  }
});

function closeView() {
  shown?.close?.();
  shown = null;
}

let current = "";
function navigate() {
  if (!me) return;
  const there = place();
  const known = VIEWS.find(([id]) => id === there.view) || (HIDDEN_VIEWS[there.view] && [there.view, ...HIDDEN_VIEWS[there.view]]);
  if (!known) {
    const first = VIEWS.find(([, , feature]) => has(feature));
    if (first) location.replace("#" + first[0]);
    else fill(main, empty("Nothing to show", "This server offers no part of the console."));
    return;
  }
  const [id, name, feature, view] = known;
  const first = !shown;
  if (shown && current === id && shown.update?.(there)) return void (document.title = `${shown.title || name} · Dragoman`);
  closeView();
  current = id;
  for (const item of menu.querySelectorAll(".item")) {
    if (item.dataset.view === (id === "task" ? "tasks" : id)) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  if (!has(feature)) return fill(main, empty(name, "This server does not offer it."));
  try {
    shown = view(there, me);
  } catch (error) {
    console.error(error);
    return fill(main, empty("This view failed", line(error.message, 300)));
  }
  document.title = `${shown.title || name} · Dragoman`;
  fill(main, shown.node);
  if (document.activeElement === document.body && !first) main.focus({ preventScroll: true });
}
window.addEventListener("hashchange", () => {
  const token = takeToken();
  if (token) return void enter(token);
  navigate();
});

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main")?.focus();
});

async function start() {
  me = await get("me");
  me.features ??= [];
  closeView(); // of whoever was logged in before
  frame();
  navigate();
  if (has("dev")) followReloads();
}

async function enter(token) {
  let refused = "";
  if (token) {
    try { await logIn(token); } catch (error) { refused = error.message; }
  }
  try {
    await start();
    if (refused) toast("The token in the address was not accepted; you were logged in already.");
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return loginForm(refused);
    if (error instanceof ApiError && error.status === 0) {
      fill(root, h("main#main.center", {}, empty("The server does not answer", "The page tries again every two seconds.")));
      return setTimeout(() => enter(null), 2000);
    }
    fill(root, h("main#main.center", {}, empty("The console did not start", line(error.message, 300))));
    failure(error);
  }
}

enter(takeToken());
