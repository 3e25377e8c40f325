// The sessions of a run: filters, full-text search, and a list of any length.

import { brief, button, count, debounce, put, fixed, h, pill, plural, seconds, signed } from "./dom.js";
import { get } from "./data.js";
import { go, link, note } from "./route.js";
import { VirtualList } from "./list.js";
import { summary } from "./summary.js";

const COLUMNS = [
  ["status", "status", "Status"], ["task", "task", "Task"], ["id", "id", "Session"], ["score", "score", "Score"], ["reward", "reward", "Reward"],
  ["turns", "turns", "Turns"], ["calls", "calls", "Calls"], ["tokens", "tokens", "Tokens"], ["seconds", "seconds", "Time"], ["cause", null, "Ended by"],
];
const MANY = ["status", "outcome", "task", "env", "policy", "tool"];
const ONE = ["text", "group", "cause", "min_score", "max_score", "min_reward", "max_reward", "min_turns", "max_turns", "sort", "desc"];
const SHOWN = 8;

export async function sessionsView(run, query, shell) {
  const given = new URLSearchParams(query);
  const chosen = { ...Object.fromEntries(MANY.map(name => [name, given.getAll(name)])), ...Object.fromEntries(ONE.map(name => [name, given.get(name) ?? ""])) };
  const shownTotal = h("span", { class: "dim", role: "status" });
  const active = h("div", { class: "active-filters" });
  const facets = h("div", { class: "facets" });
  const top = h("div", {});

  const list = new VirtualList({
    label: "Sessions", rowHeight: 36,
    fetchPage: (offset, limit) => get(["runs", run, "sessions"], { ...chosen, offset, limit }),
    render: cells, open: row => go(["run", run, "session", row.id], chosen.text ? { text: chosen.text } : {}),
    onTotal: total => { shownTotal.textContent = plural(total, "session"); },
  });

  function cells(row) {
    const several = row.attempts > 1;
    return [
      h("span", { class: "cell c-status" }, several ? attemptsOf(row) : pill(row.status, row.solved > 0)),
      h("span", { class: "cell c-task", title: row.task }, row.task),
      h("span", { class: "cell c-id mono", title: row.id }, row.id),
      h("span", { class: "cell number c-score" }, fixed(row.score)),
      h("span", { class: "cell number c-reward" }, row.reward === null ? "" : signed(row.reward)),
      h("span", { class: "cell number c-turns" }, count(row.turns)),
      h("span", { class: "cell number c-calls" }, count(row.calls), row.failed_calls > 0 && h("span", { class: "bad", title: "calls that failed" }, ` ${row.failed_calls}✗`)),
      h("span", { class: "cell number c-tokens" }, brief(row.completion_tokens)),
      h("span", { class: "cell number c-seconds" }, seconds(row.seconds)),
      h("span", { class: "cell c-cause", title: row.cause }, row.cause),
    ];
  }

  const attemptsOf = row => h("span", { class: "attempt-dots", title: `${row.solved} of ${row.attempts} attempts solved` },
    (row.ends ?? []).slice(0, 10).map(end => h("span", { class: `dot is-${end.passed ? "solved" : String(end.status).split(":")[0]}` })), h("span", {}, `${row.solved}/${row.attempts}`));

  const header = h("div", { class: "row list-head", role: "presentation" });
  function drawHeader() {
    put(header, ...COLUMNS.map(([name, sort, label]) => {
      const here = sort && (chosen.sort || "begun") === sort;
      return h("span", { class: `cell c-${name}${["score", "reward", "turns", "calls", "tokens", "seconds"].includes(name) ? " number" : ""}` }, sort
        ? button([label, here ? (chosen.desc ? " ↓" : " ↑") : ""].join(""), () => {
          const first = ["score", "reward", "turns", "calls", "tokens", "seconds"].includes(sort) ? "1" : "";
          if (!here) { chosen.sort = sort; chosen.desc = first; }
          else if (chosen.desc === first) chosen.desc = first ? "" : "1";
          else { chosen.sort = ""; chosen.desc = ""; }
          apply();
        }, { class: "plain sort", "aria-pressed": String(Boolean(here)) }) : label);
    }));
  }

  const search = h("input", {
    type: "search", class: "find wide", value: chosen.text, placeholder: "Search messages, tools, results…  /", "aria-label": "Search all text",
    oninput: debounce(() => { chosen.text = search.value; apply(); }),
    onkeydown: event => {
      if (event.key === "Escape" && search.value) { search.value = ""; chosen.text = ""; apply(); event.stopPropagation(); }
      if (event.key === "Enter" || event.key === "ArrowDown") { list.element.focus(); if (list.at < 0) list.select(0); event.preventDefault(); }
    },
  });

  async function apply() {
    note(["run", run, "sessions"], chosen);
    drawHeader();
    drawActive();
    drawFacets();
    try { await list.reload({ top: true }); } catch (error) { shell.problem(error); }
  }

  function drawActive() {
    const chips = [];
    for (const name of MANY) for (const value of chosen[name]) chips.push([`${name}: ${value}`, () => { chosen[name] = chosen[name].filter(one => one !== value); }]);
    for (const name of ["group", "cause", "min_score", "max_score", "min_reward", "max_reward", "min_turns", "max_turns"]) {
      if (chosen[name]) chips.push([`${name.replace("_", " ").replace("min", "≥").replace("max", "≤")}: ${chosen[name]}`, () => { chosen[name] = ""; }]);
    }
    put(active, ...chips.map(([label, drop]) => h("button", { type: "button", class: "chip filter-chip", "aria-label": `Remove filter ${label}`, onclick: () => { drop(); apply(); } }, label, h("span", { "aria-hidden": "true" }, " ×"))),
      chips.length > 1 ? button("Clear all", clear, { class: "link" }) : "");
  }

  function clear() {
    for (const name of MANY) chosen[name] = [];
    for (const name of ONE) if (name !== "sort" && name !== "desc") chosen[name] = "";
    search.value = "";
    apply();
  }

  let known = {};
  const open = new Set();
  function drawFacets() {
    const ranges = [["score", "Score", "any"], ["reward", "Step rewards", "any"], ["turns", "Turns", "1"]];
    const focused = document.activeElement?.id;
    put(facets, 
      ...[["outcome", "Outcome"], ["status", "Status"], ["tool", "Tool"], ["task", "Task"], ["policy", "Policy"], ["env", "Environment"]].map(([name, label]) => facet(name, label)),
      ...ranges.map(([name, label, step]) => h("fieldset", { class: "range" }, h("legend", {}, label), ["min", "max"].map(end => h("input", {
        type: "number", step, id: `f-${end}-${name}`, placeholder: end, "aria-label": `${label}: ${end === "min" ? "at least" : "at most"}`, value: chosen[`${end}_${name}`],
        onchange: event => { chosen[`${end}_${name}`] = event.target.value; apply(); },
      })))));
    if (focused) document.getElementById(focused)?.focus();
  }

  function facet(name, label) {
    const values = known[name] ?? [];
    if (!values.length || (values.length === 1 && !chosen[name].length && name !== "status")) return "";
    const shown = open.has(name) ? values : values.filter((one, at) => at < SHOWN || chosen[name].includes(one.value));
    const most = Math.max(...values.map(one => one.n), 1);
    return h("fieldset", { class: "facet" }, h("legend", {}, label), shown.map((one, at) => h("label", { class: "facet-value" },
      h("input", {
        type: "checkbox", id: `f-${name}-${at}`, checked: chosen[name].includes(one.value),
        onchange: event => { chosen[name] = event.target.checked ? [...chosen[name], one.value] : chosen[name].filter(value => value !== one.value); apply(); },
      }),
      h("span", { class: "facet-name", title: one.value }, one.value), h("span", { class: "facet-bar", "aria-hidden": "true" }, h("span", { style: { width: `${(100 * one.n) / most}%` } })), h("span", { class: "number dim" }, brief(one.n)))),
    values.length > SHOWN && button(open.has(name) ? "Fewer" : `All ${values.length}`, () => { open.has(name) ? open.delete(name) : open.add(name); drawFacets(); }, { class: "link" }));
  }

  async function refresh() {
    known = await get(["runs", run, "facets"]);
    drawFacets();
    put(top, summary(shell.overview, run));
    const { tokens, rewarded } = shell.overview?.totals ?? {};
    list.element.classList.toggle("no-tokens", tokens === 0);
    list.element.classList.toggle("no-rewards", rewarded === 0);
  }

  drawHeader();
  drawActive();
  list.element.prepend(header);
  const element = h("div", { class: "sessions" },
    h("aside", { class: "filters", "aria-label": "Filters" }, facets),
    h("section", { class: "listing" }, top, h("div", { class: "toolbar" }, search, active, h("span", { class: "grow" }), shownTotal), list.element));
  const first = refresh();
  return {
    element,
    title: `${run} · sessions`,
    up: ["runs"],
    focusSearch: () => search.focus(),
    ready: async () => { await Promise.all([first, list.reload({ top: true })]); },
    changed: async () => { await Promise.all([refresh(), list.reload()]); },
    key(event) {
      if (event.key === "j" || event.key === "k") { list.element.focus(); list.move(event.key === "j" ? 1 : -1); return true; }
      if (event.key === "c") { clear(); return true; }
      return false;
    },
  };
}

export const sessionsOf = (run, filter) => link(["run", run, "sessions"], filter);
