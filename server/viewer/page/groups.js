// The groups of a run: how the attempts at one task compare.

import { button, count, put, fixed, h, percent, plural } from "./dom.js";
import { get } from "./data.js";
import { go, note } from "./route.js";
import { VirtualList } from "./list.js";

const HEADS = [["task", "Task"], ["begun", "Group"], ["members", "Attempts"], ["solved", "Solved"], ["mean", "Mean score"], ["spread", "Spread"], ["turns", "Turns"]];

export async function groupsView(run, query, shell) {
  const given = new URLSearchParams(query);
  const chosen = { sort: given.get("sort") ?? "", desc: given.get("desc") ?? "", mixed: given.get("mixed") ?? "", task: given.get("task") ?? "" };
  const total = h("span", { class: "dim", role: "status" });
  const list = new VirtualList({
    label: "Groups", rowHeight: 40,
    fetchPage: (offset, limit) => get(["runs", run, "groups"], { ...chosen, offset, limit }),
    render: row => [
      h("span", { class: "cell c-task", title: row.task }, row.task),
      h("span", { class: "cell c-id mono", title: row.id }, row.id, !row.sealed && h("span", { class: "pill is-running" }, "open")),
      h("span", { class: "cell c-attempts" }, h("span", { class: "attempt-dots" }, row.attempts.slice(0, 24).map(one => h("span", { class: `dot is-${one.passed ? "solved" : String(one.status).split(":")[0]}`, title: `sample ${one.sample}: ${one.passed ? "solved" : one.status}${one.score === null ? "" : ` ${fixed(one.score)}`}` }))),
        row.left > 0 && h("span", { class: "dim" }, `${row.left} left`)),
      h("span", { class: "cell number c-score" }, row.share === null ? "" : percent(row.share)),
      h("span", { class: "cell number c-score" }, fixed(row.mean)),
      h("span", { class: "cell number c-score" }, row.spread === null ? "" : row.spread < 1e-9 ? h("span", { class: "dim", title: "all scores are equal: no group-relative advantage" }, "none") : fixed(row.spread, 2)),
      h("span", { class: "cell number c-turns" }, count(row.turns)),
    ],
    open: row => go(["run", run, "group", row.id]),
    onTotal: n => { total.textContent = plural(n, "group"); },
  });
  const header = h("div", { class: "row list-head" });
  const classes = ["c-task", "c-id", "c-attempts", "number c-score", "number c-score", "number c-score", "number c-turns"];
  function drawHeader() {
    put(header, ...HEADS.map(([sort, label], at) => {
      const here = (chosen.sort || "begun") === sort;
      return h("span", { class: `cell ${classes[at]}` }, button(`${label}${here ? (chosen.desc ? " ↓" : " ↑") : ""}`, () => {
        chosen.desc = here ? (chosen.desc ? "" : "1") : sort === "task" || sort === "begun" ? "" : "1";
        chosen.sort = sort;
        apply();
      }, { class: "plain sort" }));
    }));
  }
  const mixed = h("input", { type: "checkbox", checked: Boolean(chosen.mixed), onchange: () => { chosen.mixed = mixed.checked ? "1" : ""; apply(); } });
  async function apply() {
    note(["run", run, "groups"], chosen);
    drawHeader();
    try { await list.reload({ top: true }); } catch (error) { shell.problem(error); }
  }
  drawHeader();
  list.element.prepend(header);
  return {
    element: h("div", { class: "groups" }, h("div", { class: "toolbar" },
      h("label", {}, mixed, " only groups whose scores differ"),
      chosen.task && button(`task: ${chosen.task} ×`, () => { chosen.task = ""; go(["run", run, "groups"], chosen); }, { class: "chip filter-chip" }),
      h("span", { class: "grow" }), total), list.element),
    title: `${run} · groups`,
    up: ["run", run, "sessions"],
    ready: () => list.reload({ top: true }),
    changed: () => list.reload(),
    key(event) {
      if (event.key === "j" || event.key === "k") { list.element.focus(); list.move(event.key === "j" ? 1 : -1); return true; }
      return false;
    },
  };
}
