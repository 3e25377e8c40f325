// The session tree as a drawing: time runs to the right, rival attempts and sub-agents below.

import { h, hue, s, kindOf } from "./dom.js";
import { EDGES, deedOf, failed, titleOf } from "./turn.js";

const STEP = 54;
const LANE = 46;
const LEFT = 36;
const TOP = 40;

// Where every turn is drawn: its depth, and the lane of its branch.
export function layout(turns) {
  const children = turns.map(() => []);
  const roots = [];
  for (const turn of turns) (turn.parent === null ? roots : children[turn.parent]).push(turn.index);
  const places = turns.map(() => null);
  const ends = []; // the last depth in use, by lane
  const free = (depth, from) => {
    let lane = from;
    while ((ends[lane] ?? -1) >= depth) lane += 1;
    return lane;
  };
  const open = roots.toReversed().map(index => ({ index, depth: 0, lane: 0, first: true }));
  while (open.length) {
    const { index, depth, lane, first } = open.pop();
    const own = first && (ends[lane] ?? -1) < depth ? lane : free(depth, lane);
    places[index] = { x: depth, y: own };
    ends[own] = Math.max(ends[own] ?? -1, depth);
    const order = children[index].toSorted((a, b) => rank(turns[a]) - rank(turns[b]) || a - b);
    order.toReversed().forEach((child, k) => {
      open.push({ index: child, depth: depth + 1, lane: own, first: k === order.length - 1 });
    });
  }
  return { places, children, lanes: ends.length, depth: Math.max(0, ...places.map(place => place.x)) };
}

// The branch that goes on straight: what continues, then what returns or was rewritten.
const rank = turn => (turn.role.startsWith("side") ? 5 : { continue: 0, return: 1, rewrite: 1, spawn: 3, alternative: 4 }[turn.edge]);

export function drawTree(session, { chosen, select, open, worth, worthOf }) {
  const { turns, attempts } = session;
  if (!turns.length) return h("p", { class: "nothing" }, "No turn has been recorded.");
  const { places, children, lanes, depth } = layout(turns);
  const at = index => [LEFT + places[index].x * STEP, TOP + places[index].y * LANE];
  const leaves = new Map();
  for (const attempt of attempts) if (attempt.leaf !== null) leaves.set(attempt.leaf, attempt);
  const edges = [];
  const nodes = [];
  for (const turn of turns) {
    const [x, y] = at(turn.index);
    const links = [[turn.parent, turn.edge], ...turn.returns.map(from => [from, "return"])];
    for (const [parent, edge] of links) {
      if (parent === null) continue;
      const [px, py] = at(parent);
      const bend = py === y ? "" : `C ${px + STEP * 0.55} ${py}, ${x - STEP * 0.55} ${y}, `;
      edges.push(s("path", { d: `M ${px} ${py} ${bend || "L "}${x} ${y}`, class: `tree-edge tree-${edge}${turn.role.startsWith("side") ? " tree-side" : ""}` }));
    }
    nodes.push(node(turn, x, y));
    const leaf = leaves.get(turn.index);
    if (leaf) nodes.push(ending(leaf, x, y, children[turn.index].length > 0));
  }
  const width = LEFT + depth * STEP + 190;
  const drawing = s("svg", { width, height: TOP + lanes * LANE + 10, class: "tree", role: "tree", "aria-label": "Session tree" }, edges, nodes);

  function node(turn, x, y) {
    const side = turn.role.startsWith("side");
    const shape = side
      ? s("rect", { x: -6, y: -6, width: 12, height: 12, transform: "rotate(45)" })
      : turn.agent === "main" ? s("circle", { r: 10 }) : s("rect", { x: -9, y: -9, width: 18, height: 18, rx: 4 });
    const name = titleOf(turn);
    const value = worth?.(turn.index) ?? 0;
    return s("g", {
      class: `tree-node${turn.agent === "main" ? "" : " tree-agent"}${failed(turn) ? " tree-failed" : ""}${value > 1e-9 ? " tree-good" : value < -1e-9 ? " tree-bad" : ""}`,
      transform: `translate(${x} ${y})`, role: "treeitem", id: `tree-${turn.index}`, style: { "--hue": hue(turn.agent), "--strength": Math.abs(worth?.(turn.index) ?? 0) },
      "aria-selected": "false", "aria-level": places[turn.index].x + 1,
      "aria-label": `turn ${turn.index}, ${turn.edge}, ${turn.agent}, ${name}`,
      onclick: () => select(turn.index), ondblclick: () => open(turn.index),
    }, s("title", {}, `turn ${turn.index}: ${deedOf(turn)}${turn.edge === "continue" ? "" : `\n${EDGES[turn.edge]}`}`),
    s("circle", { r: 17, class: "tree-hit" }), shape,
    s("text", { class: "tree-number", y: 3.5 }, turn.index),
    s("text", { class: "tree-label", y: 24 }, name.length > 8 ? `${name.slice(0, 7)}…` : name));
  }

  function ending(attempt, x, y, inner) {
    const label = attempts.length > 1 ? `#${attempt.number} ` : "";
    const score = attempt.score === null ? "" : ` ${Number(attempt.score.toPrecision(3))}`;
    const word = attempt.passed ? "solved" : attempt.status;
    return s("text", { class: `tree-end is-${kindOf(attempt.status, attempt.passed)}`, x: inner ? x + 4 : x + 18, y: inner ? y - 16 : y + 4 }, `${label}${word}${score}`);
  }

  function mark(index) {
    drawing.querySelectorAll('[aria-selected="true"]').forEach(one => one.setAttribute("aria-selected", "false"));
    const one = drawing.querySelector(`#tree-${index}`);
    if (!one) return;
    one.setAttribute("aria-selected", "true");
    frame.setAttribute("aria-activedescendant", `tree-${index}`);
    const [x, y] = at(index);
    if (x < frame.scrollLeft + 30 || x > frame.scrollLeft + frame.clientWidth - 60) frame.scrollLeft = x - frame.clientWidth / 2;
    if (y < frame.scrollTop + 30 || y > frame.scrollTop + frame.clientHeight - 40) frame.scrollTop = y - frame.clientHeight / 2;
  }

  let here = chosen ?? 0;
  const step = key => {
    const turn = turns[here];
    const beside = turn.parent === null ? turns.filter(t => t.parent === null).map(t => t.index) : children[turn.parent];
    const order = beside.toSorted((a, b) => places[a].y - places[b].y);
    const place = order.indexOf(here);
    if (key === "ArrowLeft") return turn.parent;
    if (key === "ArrowRight") return children[here].toSorted((a, b) => places[a].y - places[b].y)[0];
    if (order.length > 1 && order[place + (key === "ArrowDown" ? 1 : -1)] !== undefined) return order[place + (key === "ArrowDown" ? 1 : -1)];
    return nearest(places, here, key === "ArrowDown" ? 1 : -1);
  };
  const frame = h("div", {
    class: "tree-frame", tabindex: "0", role: "group", "aria-label": "Session tree; arrows move, Enter opens the turn",
    onkeydown: event => {
      if (event.key === "Enter") { open(here); event.preventDefault(); return; }
      if (!event.key.startsWith("Arrow")) return;
      event.preventDefault();
      event.stopPropagation();
      const next = step(event.key);
      if (next !== undefined && next !== null) { here = next; select(next); }
    },
  }, drawing);
  const kinds = new Set(turns.map(turn => turn.edge));
  const legend = h("div", { class: "legend" },
    Object.entries(EDGES).filter(([edge]) => kinds.has(edge)).map(([edge, means]) => h("span", {}, s("svg", { width: 26, height: 10, "aria-hidden": "true" }, s("path", { d: "M 1 5 L 25 5", class: `tree-edge tree-${edge}` })), means)),
    turns.some(turn => turn.role.startsWith("side")) && h("span", {}, "◇ a side call"),
    worthOf && h("span", {}, h("span", { class: "swatch swatch-good" }), h("span", { class: "swatch swatch-bad" }), ` ${worthOf}`),
    h("span", { class: "dim" }, "Arrow keys move, Enter opens the turn."));
  return Object.assign(h("div", { class: "tree-view" }, frame, legend), { mark: index => { here = index; mark(index); } });
}

function nearest(places, index, direction) {
  let best;
  places.forEach((place, other) => {
    const dy = (place.y - places[index].y) * direction;
    if (dy <= 0) return;
    const distance = dy * 3 + Math.abs(place.x - places[index].x);
    if (best === undefined || distance < best[0]) best = [distance, other];
  });
  return best?.[1];
}
