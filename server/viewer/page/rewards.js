// Rewards and advantages: what each turn was worth to several derivers, and of which terms.

import { button, put, fixed, h, signed } from "./dom.js";
import { get } from "./data.js";
import { deedOf } from "./turn.js";

const USUAL = ["outcome", "grpo", "gigpo"];

// The derivers that can be chosen, and the chosen ones; it calls `changed` with their names.
export function deriverChoice(chosen, changed) {
  const names = chosen.length ? chosen : USUAL;
  const picked = new Set(names);
  const element = h("div", { class: "choice", role: "group", "aria-label": "Derivers" });
  const draw = known => {
    put(element, ...known.filter(one => !one.broken).map(one => h("label", { class: "choice-one", title: one.about },
      h("input", { type: "checkbox", checked: picked.has(one.name), onchange: event => {
        event.target.checked ? picked.add(one.name) : picked.delete(one.name);
        changed([...picked]);
      } }), one.name, one.group_relative && h("span", { class: "dim", title: "compares the attempts of a group" }, " ⇄"))));
  };
  get(["derivers"]).then(draw, error => element.append(error.message));
  return { element: h("details", { class: "deriver-choice" }, h("summary", {}, "Derivers"), element), names };
}

// What the derivers give one session: those derived now, then those stored in the run.
export function columnsOf(session, values) {
  const columns = values.map(one => ({
    name: one.name, kind: one.kind, problem: one.problem, provisional: one.provisional, partial: one.partial,
    turns: one.sessions?.[session.id] ?? null,
  }));
  for (const [name, stored] of Object.entries(session.stored)) {
    const turns = stored.values.map(value => ({ value, terms: {}, spans: {} }));
    for (const [turn, span, value] of stored.spans ?? []) turns[turn].spans[span] = value;
    columns.push({ name: `${name} (stored)`, kind: stored.kind, turns, stored: true });
  }
  return columns;
}

export function barOf(value, largest) {
  const share = largest > 0 ? Math.min(1, Math.abs(value) / largest) : 0;
  return h("span", { class: "bar", "aria-hidden": "true" }, h("span", {
    class: `bar-fill ${value < 0 ? "bar-negative" : "bar-positive"}`, style: { width: `${share * 50}%` },
  }));
}

export const termsOf = part => {
  const terms = Object.entries(part.terms).filter(([, value]) => Math.abs(value) > 1e-12);
  const spans = Object.entries(part.spans);
  const whole = terms.length === 1 && Math.abs(terms[0][1] - part.value) < 1e-9;
  if ((!terms.length || whole) && !spans.length) return null;
  return h("div", { class: "terms" },
    !whole && terms.map(([name, value]) => h("span", {}, `${name} ${signed(value)}`)),
    spans.map(([name, value]) => h("span", { class: "term-span", title: "added on the tokens of this span" }, `${name} ${signed(value)}`)));
};

// A table of the turns of a path: one column for each deriver.
export function rewardTable(session, path, columns, { open }) {
  const shown = columns.filter(column => column.turns);
  const largest = shown.map(column => Math.max(...column.turns.map(part => Math.abs(part.value)), 0));
  const environment = session.turns.some(turn => turn.reward !== null);
  return h("div", { class: "rewards" },
    columns.filter(column => column.problem).map(column => h("p", { class: "note" }, h("strong", {}, column.name), ` can't be derived: ${column.problem}`)),
    columns.some(column => column.provisional) && h("p", { class: "note" }, "The group is not sealed yet: these values are provisional."),
    columns.filter(column => column.partial && column.turns).map(column => h("p", { class: "note" }, h("strong", {}, column.name), " compares all sessions of a run; these are its values for this group alone.")),
    h("div", { class: "table-frame" }, h("table", { class: "reward-table" },
      h("thead", {}, h("tr", {},
        h("th", { scope: "col" }, "turn"), h("th", { scope: "col" }, "what it did"), environment && h("th", { scope: "col" }, "env"),
        shown.map(column => h("th", { scope: "col" }, column.name, h("div", { class: "dim" }, column.kind))))),
      h("tbody", {}, path.map(index => {
        const turn = session.turns[index];
        return h("tr", { onclick: () => open(index) },
          h("th", { scope: "row" }, button(String(index), () => open(index), { class: "plain" })),
          h("td", { class: "deed", title: deedOf(turn) }, deedOf(turn)),
          environment && h("td", { class: "number" }, turn.reward === null ? "" : signed(turn.reward)),
          shown.map((column, k) => {
            const part = column.turns[index];
            if (!part) return h("td", {});
            return h("td", { class: "worth" }, h("div", { class: "worth-line" }, barOf(part.value, largest[k]), h("span", { class: "number" }, signed(part.value))), termsOf(part));
          }));
      })),
      h("tfoot", {}, h("tr", {}, h("th", { scope: "row", colspan: environment ? 3 : 2 }, "sum over these turns"),
        shown.map(column => h("td", { class: "number" }, fixed(path.reduce((sum, index) => sum + (column.turns[index]?.value ?? 0), 0)))))))));
}
