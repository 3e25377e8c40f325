// The frame around the views: address, navigation, keys, theme, and news of a run in progress.

import { button, count, put, h, icon, percent } from "./dom.js";
import { embedded, get, keepToken } from "./data.js";
import { go, link, readRoute } from "./route.js";
import { groupView } from "./compare.js";
import { failuresView, runsView } from "./failures.js";
import { groupsView } from "./groups.js";
import { plotsView } from "./plots.js";
import { sessionView } from "./session.js";
import { sessionsView } from "./sessions.js";

const POLL = 1000;
const KEYS = [
  ["/", "search"], ["j  k", "next and previous turn or row"], ["Enter", "open"], ["Esc", "leave the search, close, go up"],
  ["1 2 3 4", "conversation, tree, rewards, tokens"], ["n  N", "next and previous turn that was found"], ["← ↑ ↓ →", "move in the tree"],
  ["g", "compare with the session's group"], ["t", "light or dark"], ["?", "these keys"],
];

const crumbs = h("nav", { class: "crumbs", "aria-label": "Place" });
const sections = h("nav", { class: "sections", "aria-label": "Sections" });
const state = h("span", { class: "live", role: "status" });
const alert = h("div", { class: "alert", role: "alert", hidden: true });
const main = h("main", { id: "main", tabindex: "-1" });
const shell = {
  overview: null,
  texts: embedded ? embedded.overview.texts : false,
  problem(error) {
    alert.hidden = false;
    const message = error.status === 401 ? "The token is missing or wrong: open the address that the command printed." : error.message || String(error);
    alert.replaceChildren(message, button("×", () => { alert.hidden = true; }, { class: "plain", "aria-label": "Dismiss" }));
  },
};
let view = null;
let visit = 0;
let shownRun = null;

// Theme: the system's, unless one was chosen.
function theme(choice) {
  if (choice) document.documentElement.dataset.theme = choice;
  else delete document.documentElement.dataset.theme;
}
const dark = () => document.documentElement.dataset.theme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
function switchTheme() {
  const next = dark() ? "light" : "dark";
  theme(next);
  try { localStorage.setItem("trajgym.theme", next); } catch { /* it holds while the page is open */ }
}
try { theme(localStorage.getItem("trajgym.theme")); } catch { theme(null); }

const help = h("dialog", { class: "help", "aria-label": "Keys" }, h("h2", {}, "Keys"),
  h("dl", {}, KEYS.flatMap(([key, what]) => [h("dt", {}, key.split("  ").map(one => h("kbd", {}, one))), h("dd", {}, what)])), button("Close", () => help.close()));

document.body.append(
  h("a", { class: "skip", href: "#main", onclick: event => { event.preventDefault(); main.focus(); } }, "Skip to content"),
  h("header", { class: "top" }, h("span", { class: "brand" }, icon(["M2 12 L6 7 L9 9.5 L14 3.5", "M6 7 L10 13"]), "trajgym"), crumbs, h("span", { class: "grow" }), sections, state,
    h("button", { type: "button", class: "plain round", title: "Light or dark (t)", "aria-label": "Light or dark", onclick: switchTheme }, icon(["M8 1.5a6.5 6.5 0 1 0 0 13z", "M8 1.5a6.5 6.5 0 0 1 0 13"])),
    h("button", { type: "button", class: "plain round", title: "Keys (?)", "aria-label": "Keys", onclick: () => help.showModal() }, "?")),
  alert, main, help);
main.addEventListener("problem", event => shell.problem(event.detail));

function drawTop(parts) {
  const [kind, run, section, id] = parts;
  const names = { sessions: "Sessions", groups: "Groups", failures: "Failures", plots: "Plots" };
  if (embedded) { put(crumbs, h("span", {}, embedded.session.task), h("span", { class: "dim" }, ` exported from ${embedded.overview.name}`)); return; }
  put(crumbs, ...[h("a", { href: "#/runs" }, "runs"), kind === "run" && h("a", { href: link(["run", run, "sessions"]) }, run.replaceAll("~", "/")),
    section === "session" && h("span", { class: "mono" }, id), section === "group" && h("span", { class: "mono" }, id)].filter(Boolean).flatMap((part, at) => (at ? [h("span", { class: "dim", "aria-hidden": "true" }, " / "), part] : [part])));
  const here = { session: "sessions", group: "groups" }[section] ?? section;
  put(sections, ...(kind === "run" ? Object.entries(names).map(([name, label]) => h("a", { href: link(["run", run, name]), "aria-current": name === here ? "page" : null }, label)) : []));
}

async function make(parts, query) {
  if (embedded) return sessionView(embedded.overview.name, embedded.session.id, query, shell);
  const [kind, run, section, id] = parts;
  if (kind !== "run") return runsView();
  if (shownRun !== run || !shell.overview) {
    shell.overview = await get(["runs", run]);
    shell.texts = shell.overview.texts;
    shownRun = run;
    drawState();
  }
  if (section === "session") return sessionView(run, id, query, shell);
  if (section === "groups") return groupsView(run, query, shell);
  if (section === "group") return groupView(run, id, query, shell);
  if (section === "failures") return failuresView(run, shell);
  if (section === "plots") return plotsView(run, shell);
  return sessionsView(run, query, shell);
}

async function navigate() {
  const { parts, query } = readRoute();
  if (query.has("token")) {
    keepToken(query.get("token"));
    query.delete("token");
    history.replaceState(null, "", link(parts, query));
  }
  if (!parts.length && !embedded) {
    try {
      const { runs } = await get(["runs"]);
      if (runs.length === 1) { history.replaceState(null, "", link(["run", runs[0].name, "sessions"])); return navigate(); }
    } catch (error) { shell.problem(error); return undefined; }
  }
  visit += 1;
  const own = visit;
  alert.hidden = true;
  drawTop(parts);
  if (parts[0] !== "run") { shownRun = null; shell.overview = null; drawState(); }
  try {
    const made = await make(parts, query);
    if (own !== visit) return undefined;
    view = made;
    put(main, made.element);
    document.title = `${made.title} · trajgym`;
    await made.ready?.();
    if (document.activeElement === document.body) main.focus({ preventScroll: true });
  } catch (error) {
    if (own !== visit) return undefined;
    view = null;
    put(main, h("p", { class: "nothing" }, error.message));
    shell.problem(error);
  }
  return undefined;
}

function drawState() {
  const overview = shell.overview;
  if (!overview || embedded) { put(state); return; }
  const reading = overview.read < overview.turns;
  state.className = `live${overview.live ? " is-live" : ""}`;
  state.title = reading ? "Figures and search are incomplete until every turn has been read." : "";
  put(state, ...(overview.error ? [h("span", { class: "bad", title: overview.error }, "can't be read")]
    : reading ? [`reading ${percent(overview.read / overview.turns)}`]
      : overview.live ? [h("span", { class: "beat", "aria-hidden": "true" }), `live, ${count(overview.totals?.running ?? 0)} running`] : []));
}

async function poll() {
  try {
    if (!document.hidden && view && !embedded) {
      if (shownRun) {
        const run = shownRun;
        const found = await get(["runs", run], { after: shell.overview?.revision });
        if (run === shownRun) {
          const news = Boolean(found.totals);
          shell.overview = { ...shell.overview, ...found };
          drawState();
          if (news) await view.changed?.();
          else await view.tick?.();
          if (!found.error && !alert.hidden && alert.dataset.polling) { alert.hidden = true; delete alert.dataset.polling; }
        }
      } else await view.polled?.();
    }
  } catch (error) {
    if (!(error instanceof TypeError)) shell.problem(error);
    else { shell.problem(new Error("The viewer does not answer: it may have been stopped.")); alert.dataset.polling = "1"; }
  }
  setTimeout(poll, POLL);
}

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const typing = event.target.matches?.("input:not([type=checkbox]), textarea, select");
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else if (view?.up) go(view.up);
    return;
  }
  if (typing) return;
  if (event.key === "/" && view?.focusSearch) { view.focusSearch(); event.preventDefault(); }
  else if (event.key === "?") help.showModal();
  else if (event.key === "t") switchTheme();
  else if (view?.key(event)) event.preventDefault();
});
window.addEventListener("hashchange", navigate);
navigate().then(poll);
