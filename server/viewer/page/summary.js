// A run at a glance.

import { brief, count, fixed, h, percent, seconds } from "./dom.js";
import { link } from "./route.js";

const ORDER = ["solved", "completed", "truncated", "failed", "interrupted", "cancelled", "running"];

export function summary(overview, run) {
  const totals = overview?.totals;
  if (!totals) return h("div", {});
  const parts = new Map(ORDER.map(kind => [kind, 0]));
  for (const [status, n] of Object.entries(totals.statuses)) {
    const kind = status.split(":")[0];
    parts.set(kind, (parts.get(kind) ?? 0) + n);
  }
  // Solved attempts are completed or truncated ones that passed.
  const fromCompleted = Math.min(totals.solved, parts.get("completed"));
  parts.set("completed", parts.get("completed") - fromCompleted);
  parts.set("truncated", parts.get("truncated") - (totals.solved - fromCompleted));
  parts.set("solved", totals.solved);
  const all = Math.max(1, totals.attempts);
  const figure = (value, label, title) => h("div", { class: "figure", title }, h("strong", {}, value), h("span", {}, label));
  return h("div", { class: "summary" },
    h("div", { class: "figures" },
      figure(count(totals.sessions), totals.sessions === 1 ? "session" : "sessions"),
      figure(percent(totals.scored ? totals.solved / totals.scored : null), "solved", `${count(totals.solved)} of ${count(totals.scored)} scored attempts`),
      figure(totals.scored ? fixed(totals.score_sum / totals.scored) : "–", "mean score"),
      figure(brief(totals.turns), "turns"),
      figure(totals.calls ? percent(totals.failed_calls / totals.calls) : "–", "calls failed", `${count(totals.failed_calls)} of ${count(totals.calls)} tool calls`),
      figure(brief(totals.tokens), "sampled tokens", `${count(totals.exact)} of ${count(totals.turns)} turns have token ids`),
      totals.groups > 0 && h("a", { class: "figure", href: link(["run", run, "groups"]) }, h("strong", {}, count(totals.groups)), h("span", {}, `groups, ${count(totals.sealed)} sealed`)),
      totals.seconds > 0 && figure(seconds(totals.seconds), "of turns")),
    h("div", { class: "stack", role: "img", "aria-label": [...parts].filter(([, n]) => n > 0).map(([kind, n]) => `${n} ${kind}`).join(", ") },
      [...parts].filter(([, n]) => n > 0).map(([kind, n]) => h("span", { class: `stack-part is-${kind}`, style: { "flex-grow": String(n / all) }, title: `${count(n)} ${kind}` }))),
    h("div", { class: "legend stack-legend" }, [...parts].filter(([, n]) => n > 0).map(([kind, n]) => h("span", {}, h("span", { class: `dot is-${kind}` }), ` ${count(n)} ${kind === "completed" ? "not solved" : kind}`))));
}
