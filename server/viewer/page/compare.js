// A group: a map of where its attempts part, and the chosen ones side by side from there.

import { button, count, put, fixed, h, hue, kindOf, percent, pill, plural, s, signed } from "./dom.js";
import { get } from "./data.js";
import { go, link, note } from "./route.js";
import { deriverChoice } from "./rewards.js";
import { endingOf, turnBody, turnFacts } from "./turn.js";

const LANE_HEIGHT = 30;
const NAMES = 190;
const MOST_COLUMNS = 4;

export async function groupView(run, id, query, shell) {
  const given = new URLSearchParams(query);
  let group = await get(["runs", run, "groups", id]);
  let derivers = given.getAll("with");
  let by = given.get("by") ?? "";
  let chosen = given.getAll("of");
  let values = [];
  const sessions = new Map();
  const keyOf = one => (one.attempt ? `${one.session}:${one.attempt}` : one.session);
  const find = key => group.attempts.find(one => keyOf(one) === key);

  const head = h("header", { class: "session-head" });
  const map = h("div", { class: "map-frame", tabindex: "0", role: "group", "aria-label": "Where the attempts part" });
  const columns = h("div", { class: "columns" });
  const colours = h("select", { "aria-label": "Colour turns by", onchange: () => { by = colours.value; save(); drawMap(); } });
  const choice = deriverChoice(derivers, async names => { derivers = names; save(); await derive(); drawAll(); });
  derivers = choice.names;
  const save = () => note(["run", run, "group", id], { of: chosen, with: derivers, by });

  // Attempts in an order in which those with the same beginning are neighbours.
  const ordered = () => group.attempts.toSorted((a, b) => {
    for (let k = 0; k < Math.max(a.turns.length, b.turns.length); k += 1) {
      const [x, y] = [a.turns[k]?.digest, b.turns[k]?.digest];
      if (x !== y) return x === undefined ? -1 : y === undefined ? 1 : weight(k, y) - weight(k, x) || (x < y ? -1 : 1);
    }
    return a.sample - b.sample || a.attempt - b.attempt;
  });
  const weight = (depth, digest) => group.attempts.filter(one => one.turns[depth]?.digest === digest).length;

  // How many first turns the attempts share.
  function shared(attempts) {
    if (attempts.length < 2) return 0;
    let k = 0;
    while (attempts.every(one => one.turns[k] && one.turns[k].digest === attempts[0].turns[k].digest)) k += 1;
    return k;
  }

  function choose() {
    const known = chosen.map(find).filter(Boolean);
    if (known.length > 1) { chosen = known.slice(0, MOST_COLUMNS).map(keyOf); return; }
    const first = known[0] ?? ordered().find(one => one.passed) ?? group.attempts[0];
    if (!first) { chosen = []; return; }
    // The rival that stays together with it for longest, and ended differently if one did.
    const rivals = group.attempts.filter(one => one !== first).toSorted((a, b) =>
      Number(b.passed !== first.passed && b.score !== null) - Number(a.passed !== first.passed && a.score !== null) || shared([first, b]) - shared([first, a]));
    chosen = [first, ...rivals.slice(0, 1)].map(keyOf);
  }

  async function derive() {
    try { values = derivers.length && group.attempts.length ? await get(["runs", run, "groups", id, "values"], { with: derivers }) : []; } catch (error) { shell.problem(error); }
  }

  const worthShown = () => (values.length ? by : "");
  const valueOf = (name, one, index) => values.find(found => found.name === name)?.sessions?.[one.session]?.[index];

  function drawHead() {
    const scores = group.attempts.filter(one => one.score !== null).map(one => one.score);
    const mean = scores.reduce((sum, x) => sum + x, 0) / scores.length;
    const spread = Math.sqrt(scores.reduce((sum, x) => sum + (x - mean) ** 2, 0) / scores.length);
    const left = group.members.filter(member => member.left);
    put(head, h("div", { class: "session-title" }, h("h1", {}, group.task), pill(group.sealed ? "sealed" : "open"),
      scores.length > 0 && h("strong", {}, `${percent(group.attempts.filter(one => one.passed).length / scores.length)} solved`)),
    h("div", { class: "session-facts" }, h("span", { class: "mono" }, group.id), h("span", {}, `${plural(group.attempts.length, "attempt")} of ${count(group.planned)} planned`),
      scores.length > 0 && h("span", {}, `mean score ${fixed(mean)}, spread ${fixed(spread, 2)}`),
      scores.length > 1 && spread < 1e-12 && h("span", { class: "note" }, "all scores are equal: no group-relative advantage"),
      left.length > 0 && h("span", {}, `left: ${left.map(member => `sample ${member.sample} (${member.left})`).join(", ")}`)));
    const names = values.filter(one => one.sessions).map(one => one.name);
    if (by && values.length && !names.includes(by)) by = "";
    put(colours, h("option", { value: "" }, "colour by tool"), ...names.map(name => h("option", { value: name }, `colour by ${name}`)));
    colours.value = worthShown();
  }

  // An icicle: one lane for each attempt; a turn that several share spans their lanes.
  function drawMap() {
    const by = worthShown(); // until there are values, the tools
    const order = ordered();
    const deepest = Math.max(1, ...order.map(one => one.turns.length));
    const width = Math.max(26, Math.min(110, Math.floor((Math.max(480, map.clientWidth || 900) - NAMES - 190) / deepest)));
    const largest = by ? Math.max(...order.flatMap(one => one.turns.map(turn => Math.abs(valueOf(by, one, turn.index)?.value ?? 0))), 1e-9) : 1;
    const cells = [];
    for (let depth = 0; depth < deepest; depth += 1) {
      let lane = 0;
      while (lane < order.length) {
        const turn = order[lane].turns[depth];
        let end = lane + 1;
        while (end < order.length && turn && same(order[lane], order[end], depth)) end += 1;
        if (turn) cells.push(cell(order.slice(lane, end), depth, lane, end, turn));
        lane = end;
      }
    }
    function same(a, b, depth) {
      for (let k = 0; k <= depth; k += 1) if (a.turns[k]?.digest !== b.turns[k]?.digest) return false;
      return true;
    }
    function cell(members, depth, lane, end, turn) {
      const x = NAMES + depth * width;
      const y = lane * LANE_HEIGHT;
      const height = (end - lane) * LANE_HEIGHT;
      const tool = turn.tools[0] ?? "says";
      const worths = by ? members.map(one => valueOf(by, one, one.turns[depth].index)?.value).filter(v => v !== undefined) : [];
      const worth = worths.length ? worths.reduce((a, b) => a + b, 0) / worths.length : 0;
      const style = by ? { "--strength": String(Math.min(1, Math.abs(worth) / largest)) } : { "--hue": String(hue(tool)) };
      const label = by ? (worths.length ? signed(Number(worth.toPrecision(2))) : "") : tool;
      const fits = Math.floor((width - 8) / 6.4);
      return s("g", { class: `cell-of${by ? (worth < -1e-12 ? " cell-bad" : worth > 1e-12 ? " cell-good" : " cell-zero") : ""}${turn.failed ? " cell-failed" : ""}`, style, onclick: () => toggle(keyOf(members[0])) },
        s("title", {}, `turn ${turn.index}: ${turn.did}${members.length > 1 ? `\nshared by ${members.length} attempts` : ""}${turn.failed ? "\na call failed" : ""}${worths.length ? `\n${by} ${signed(worth)}` : ""}`),
        s("rect", { x: x + 1, y: y + 1.5, width: width - 2, height: height - 3, rx: 4 }),
        fits > 1 && s("text", { x: x + width / 2, y: y + height / 2 + 4 }, label.length > fits ? `${label.slice(0, fits - 1)}…` : label));
    }
    const lanes = order.map((one, lane) => {
      const picked = chosen.includes(keyOf(one));
      const y = lane * LANE_HEIGHT + LANE_HEIGHT / 2;
      const x = NAMES + one.turns.length * width + 10;
      const word = one.passed ? "solved" : one.status;
      return [
        s("g", {
          class: `lane${picked ? " is-picked" : ""}`, role: "checkbox", tabindex: "0", "aria-checked": String(picked), "aria-label": `sample ${one.sample}, ${word}: compare`,
          onclick: () => toggle(keyOf(one)), onkeydown: event => { if (event.key === " " || event.key === "Enter") { toggle(keyOf(one)); event.preventDefault(); } },
        }, s("rect", { x: 0, y: y - LANE_HEIGHT / 2, width: NAMES - 8, height: LANE_HEIGHT, class: "lane-hit" }),
        s("rect", { x: 6, y: y - 7, width: 14, height: 14, rx: 3, class: "lane-box" }), picked && s("path", { d: `M 9 ${y} l 3 3.5 l 5 -7`, class: "lane-check" }),
        s("text", { x: 28, y: y + 4, class: "lane-name" }, `sample ${one.sample}${one.attempt ? ` /${one.attempt}` : ""}`)),
        s("text", { x, y: y + 4, class: `tree-end is-${kindOf(one.status, one.passed)}` }, `${word}${one.score === null ? "" : ` ${fixed(one.score)}`}`),
      ];
    });
    put(map, s("svg", { class: "map", width: NAMES + deepest * width + 180, height: order.length * LANE_HEIGHT + 4 }, cells, lanes));
  }

  function toggle(key) {
    const focused = document.activeElement?.getAttribute?.("aria-label");
    if (chosen.includes(key)) chosen = chosen.filter(one => one !== key);
    else chosen = [...chosen, key].slice(-MOST_COLUMNS);
    save();
    drawMap();
    drawColumns();
    if (focused) map.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
  }

  async function drawColumns() {
    const picked = chosen.map(find).filter(Boolean);
    if (!picked.length) { put(columns, h("p", { class: "nothing" }, "Choose attempts in the map above.")); return; }
    await Promise.all(picked.map(async one => {
      if (!sessions.has(one.session)) sessions.set(one.session, await get(["runs", run, "sessions", one.session]));
    }));
    const skip = shared(picked);
    const deepest = Math.max(...picked.map(one => one.turns.length));
    const rows = [];
    const grid = h("div", { class: "compare", style: { "--columns": String(picked.length) } });
    const heads = picked.map(one => h("header", { class: "compare-head" },
      h("a", { href: link(["run", run, "session", one.session], one.attempt ? { attempt: one.attempt } : {}) }, `sample ${one.sample}${one.attempt ? ` /${one.attempt}` : ""}`),
      pill(one.status, one.passed), one.score !== null && h("span", {}, fixed(one.score)), h("span", { class: "dim" }, plural(one.turns.length, "turn"))));
    if (skip) {
      const holder = h("div", { class: "shared-turns" });
      const toggleShared = button(`${plural(skip, "turn")} in common: show`, () => {
        const isOpen = holder.childElementCount > 0;
        put(holder);
        if (!isOpen) holder.append(...picked[0].turns.slice(0, skip).map(turn => card(picked[0], turn.index)));
        toggleShared.textContent = `${plural(skip, "turn")} in common: ${isOpen ? "show" : "hide"}`;
      }, { class: "shared-toggle" });
      rows.push(h("div", { class: "compare-whole" }, toggleShared, holder));
      if (picked.length > 1) rows.push(h("div", { class: "compare-whole parted" }, skip < deepest ? `The attempts part at turn ${skip}.` : "The attempts are equal."));
    }
    for (let depth = skip; depth < deepest; depth += 1) {
      rows.push(...picked.map(one => (one.turns[depth] ? card(one, one.turns[depth].index) : h("div", { class: "compare-none" }, depth === one.turns.length ? ending(one) : ""))));
    }
    rows.push(...picked.map(one => (one.turns.length === deepest ? ending(one) : h("div", {}))));
    put(columns, h("div", { class: "compare-frame" }, grid));
    grid.append(...heads, ...rows);
  }

  const ending = one => { const attempt = sessions.get(one.session).attempts[one.attempt]; return attempt.status === "running" ? h("p", { class: "dim" }, "running") : endingOf(attempt); };

  function card(one, index) {
    const session = sessions.get(one.session);
    const turn = session.turns[index];
    const worths = values.filter(found => found.sessions).map(found => [found.name, valueOf(found.name, one, index)?.value]).filter(([, value]) => value !== undefined);
    const acted = session.turns.find(other => other.parent === index && other.attempt === one.attempt);
    return h("article", { class: "turn compact" }, h("header", { class: "turn-head" }, h("span", { class: "turn-number" }, index),
      worths.map(([name, value]) => h("span", { class: `chip ${value > 1e-12 ? "chip-good" : value < -1e-12 ? "chip-bad" : ""}` }, `${name} ${signed(value)}`)),
      turn.reward !== null && h("span", { class: "chip" }, `env ${signed(turn.reward)}`), h("span", { class: "grow" }), turnFacts(turn).slice(0, 2)),
    h("div", { class: "turn-body" }, turnBody(turn, { run, next: () => acted })));
  }

  async function drawAll() {
    drawHead();
    drawMap();
    try { await drawColumns(); } catch (error) { shell.problem(error); }
  }

  choose();
  const element = h("div", { class: "group" }, head,
    h("div", { class: "toolbar" }, h("span", { class: "dim" }, "Turns that attempts share are one block. Choose up to four to compare."), h("span", { class: "grow" }), colours, choice.element), map, columns);
  return {
    element,
    title: `${group.task} · group`,
    up: ["run", run, "groups"],
    ready: async () => { await drawAll(); await derive(); await drawAll(); },
    async changed() {
      if (group.sealed) return;
      const found = await get(["runs", run, "groups", id]);
      if (JSON.stringify(found) === JSON.stringify(group)) return;
      group = found;
      sessions.clear();
      if (!chosen.length) choose();
      await derive();
      await drawAll();
    },
    key(event) {
      if (event.key === "Enter" && document.activeElement === map && chosen.length) { go(["run", run, "session", chosen[0].split(":")[0]]); return true; }
      return false;
    },
  };
}
