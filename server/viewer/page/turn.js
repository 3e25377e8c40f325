// One turn of a session: reasoning, text, tool calls, results and images.

import { button, count, fixed, h, hue, pill, s, seconds, signed } from "./dom.js";
import { image } from "./data.js";
import { argumentsOf, block, prose } from "./text.js";

export const EDGES = {
  alternative: "a rival attempt begins here",
  rewrite: "the context was rewritten",
  spawn: "a sub-agent begins",
  return: "a sub-agent returned",
};

export function titleOf(turn) {
  const calls = turn.message.calls || [];
  if (calls.length) return calls.map(call => call.name).join(", ");
  return textOf(turn.message).trim().replace(/\s+/g, " ").slice(0, 60) || turn.finish;
}

// A turn in a line: the tools with what they were given.
export function deedOf(turn) {
  const calls = turn.message.calls || [];
  if (!calls.length) return titleOf(turn);
  return calls.map(call => {
    let given;
    try { given = JSON.parse(call.arguments.text); } catch { given = call.arguments.text; }
    const values = given && typeof given === "object" ? Object.values(given) : [given];
    const words = values.map(value => (typeof value === "string" ? value : JSON.stringify(value))).join(" ");
    return `${call.name} ${words}`.trim().replace(/\s+/g, " ").slice(0, 120);
  }).join("; ");
}

export const textOf = message => message.parts.map(part => (part.text ?? "") + (part.end ?? "")).join("");

// All text of a turn that a search in the session looks at.
export function searchText(turn) {
  const messages = [...turn.context, turn.message, ...turn.observation];
  const calls = (turn.message.calls || []).flatMap(call => [call.name, call.arguments.text, call.arguments.end ?? ""]);
  return [...messages.map(textOf), turn.message.reasoning?.text ?? "", ...calls].join("\n").toLowerCase();
}

// How much text a turn has, without putting it together.
export const textSize = turn => [...turn.context, turn.message, ...turn.observation].reduce((sum, message) => message.parts.reduce((n, part) => n + (part.text?.length ?? 400), sum), 0);

export const failed = turn => turn.calls.some(call => ["error", "invalid", "timeout"].includes(call.status));

// The head of a turn: which, of whom, how long, on which tokens.
export function turnFacts(turn) {
  const facts = [];
  if (turn.edge !== "continue" && turn.parent !== null) facts.push(h("span", { class: `edge edge-${turn.edge}`, title: EDGES[turn.edge] }, `${turn.edge} of ${turn.parent}`));
  if (turn.agent !== "main") facts.push(h("span", { class: "agent", style: { "--hue": hue(turn.agent) } }, turn.agent));
  if (turn.role !== "main") facts.push(h("span", { class: "edge", title: turn.role_reason || null }, turn.role));
  if (turn.delivery !== "delivered") facts.push(h("span", { class: "edge" }, turn.delivery));
  const time = [turn.policy_seconds && `${seconds(turn.policy_seconds)} policy`, turn.env_seconds && `${seconds(turn.env_seconds)} env`].filter(Boolean);
  if (time.length) facts.push(h("span", {}, time.join(" + ")));
  if (turn.tokens) {
    const { low, high, response } = turn.tokens;
    facts.push(h("span", { title: `${count(turn.tokens.prompt)} prompt ids, ${count(response)} response ids` }, `${count(response)} tokens`));
    if (low >= 0) facts.push(h("span", { title: "policy versions that sampled it" }, low === high ? `v${low}` : `v${low}–${high}`));
  } else facts.push(h("span", { title: "no token ids were recorded: it can't be trained on" }, "text turn"));
  if (turn.synthetic) facts.push(h("span", { title: "the ids are those of a fake engine" }, "synthetic"));
  return facts;
}

// view: {run, next(turn) -> turn that acted on what this one showed, whole(turn) -> Promise of the uncut turn}
export function turnBody(turn, view) {
  const results = new Map(turn.calls.map(call => [call.call_id, call]));
  const answers = new Map(turn.observation.filter(m => m.role === "tool").map(m => [m.call_id, m]));
  const parts = [];
  if (turn.context.length) parts.push(contextOf(turn, view));
  if (turn.message.reasoning) {
    parts.push(h("details", { class: "reasoning", open: turn.message.reasoning.text.length < 1500 },
      h("summary", {}, "Reasoning"), prose(cutText(turn.message.reasoning))));
  }
  parts.push(...content(turn.message, turn, view, prose));
  for (const call of turn.message.calls || []) {
    const result = results.get(call.id);
    const answer = answers.get(call.id);
    answers.delete(call.id);
    parts.push(h("section", { class: `call${result && result.status !== "ok" ? " call-failed" : ""}`, style: { "--hue": hue(call.name) } },
      h("div", { class: "call-head" },
        h("span", { class: "tool" }, call.name),
        result && result.status !== "ok" && h("span", { class: "pill is-failed" }, result.status.replace("_", " ")),
        result && result.reward !== null && h("span", { class: "chip" }, `reward ${signed(result.reward)}`),
        result && result.seconds > 0.05 && h("span", { class: "dim" }, seconds(result.seconds))),
      argumentsOf(cutText(call.arguments)),
      answer && h("div", { class: "result" }, content(answer, turn, view, text => [block(text)]))));
  }
  for (const message of turn.observation) {
    if (message.role === "tool" && !answers.has(message.call_id)) continue;
    parts.push(h("section", { class: "message" }, h("div", { class: "role" }, message.role), content(message, turn, view, text => [block(text)])));
  }
  return parts;
}

function contextOf(turn, view) {
  const messages = turn.context.map(message => h("section", { class: "message" }, h("div", { class: "role" }, message.role), content(message, turn, view, prose)));
  const what = turn.kept === null || turn.kept === undefined ? "Context" : `Context, after ${count(turn.kept)} kept messages`;
  return h("details", { class: "context", open: turn.index === 0 || turn.context.length < 3 }, h("summary", {}, `${what} (${count(turn.context.length)} new)`), messages);
}

const cutText = part => (part.cut ? `${part.text}\n… ${count(part.cut)} characters …\n${part.end}` : part.text);

function content(message, turn, view, show) {
  return message.parts.flatMap((part, at) => {
    if (part.image) {
      const newest = at === message.parts.findLastIndex(one => one.image);
      return [screenshot(part.image, turn, message, newest, view)];
    }
    if (part.other) return [h("div", { class: "dim" }, `[${part.other}]`)];
    const shown = show(cutText(part));
    if (part.cut && view.whole) shown.push(button(`Load the ${count(part.cut)} characters that are left out`, () => view.whole(turn), { class: "fold" }));
    return shown;
  });
}

// A picture with the action that the next turn took on it.
function screenshot(hash, turn, message, newest, view) {
  const frame = h("figure", { class: "screen" }, h("div", { class: "screen-wait" }, "…"));
  const inContext = turn.context.includes(message);
  const acted = newest ? (inContext ? turn : view.next?.(turn)) : null;
  const area = inContext ? null : turn.area;
  image(view.run, hash).then(url => {
    const shown = h("img", { src: url, alt: `What the agent saw${acted ? `; then: ${acted.marks.map(m => m.label).join(", ")}` : ""}` });
    const place = h("div", { class: "screen-place" }, shown);
    shown.addEventListener("load", () => {
      if (acted?.marks.length) place.append(overlay(acted, shown, area));
    });
    frame.replaceChildren(place);
    if (acted?.marks.length) {
      frame.append(h("figcaption", {}, `Turn ${acted.index}: `, acted.marks.map(mark => h("span", { class: "mark-label" }, mark.label))));
    }
    shown.addEventListener("click", () => frame.classList.toggle("large"));
  }).catch(error => frame.replaceChildren(h("div", { class: "dim" }, `image ${hash.slice(0, 12)}: ${error.message}`)));
  return frame;
}

function overlay(turn, shown, area) {
  const [width, height] = turn.screen || [shown.naturalWidth, shown.naturalHeight];
  const [left, top, right, bottom] = area || [0, 0, width, height];
  const size = Math.max(right - left, bottom - top) / 60;
  return s("svg", { class: "marks", viewBox: `${left} ${top} ${right - left} ${bottom - top}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    turn.marks.flatMap(mark => {
      const points = mark.points;
      const last = points.at(-1);
      return [
        mark.area && s("rect", { x: mark.area[0], y: mark.area[1], width: mark.area[2] - mark.area[0], height: mark.area[3] - mark.area[1], class: "mark-area" }),
        points.length > 1 && s("polyline", { points: points.map(p => p.join(",")).join(" "), class: "mark-line" }),
        last && s("circle", { cx: last[0], cy: last[1], r: size, class: "mark-halo" }),
        last && s("circle", { cx: last[0], cy: last[1], r: size, class: "mark-ring" }),
        last && s("circle", { cx: last[0], cy: last[1], r: size / 5, class: "mark-dot" }),
      ];
    }));
}

// How an attempt ended, under its last turn.
export function endingOf(attempt) {
  const details = attempt.details && typeof attempt.details === "object" ? Object.entries(attempt.details) : [];
  return h("section", { class: "ending" },
    h("div", { class: "ending-head" }, pill(attempt.status, attempt.passed),
      attempt.score !== null && h("strong", {}, `score ${fixed(attempt.score)}`),
      attempt.cause && h("span", {}, attempt.cause.split("\n")[0])),
    details.length > 0 && h("dl", { class: "facts" }, details.flatMap(([name, value]) => [
      h("dt", {}, name), h("dd", {}, (typeof value === "string" ? value : JSON.stringify(value)).slice(0, 600))])),
    attempt.error && h("details", {}, h("summary", {}, "Traceback"), block(attempt.error)));
}
