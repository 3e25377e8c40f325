// Why attempts failed: by cause, and by tool.

import { count, put, h, percent, pill } from "./dom.js";
import { get } from "./data.js";
import { link } from "./route.js";

export async function failuresView(run) {
  const element = h("div", { class: "failures padded" });
  async function draw() {
    const found = await get(["runs", run, "failures"]);
    const most = Math.max(1, ...found.causes.map(one => one.n));
    put(element, 
      h("h1", {}, "How attempts ended, other than completed"),
      found.causes.length ? h("div", { class: "table-frame" }, h("table", { class: "plain-table" },
        h("thead", {}, h("tr", {}, ["status", "cause", "attempts", "", "scored", ""].map(name => h("th", { scope: "col" }, name)))),
        h("tbody", {}, found.causes.map(one => h("tr", {},
          h("td", {}, pill(one.status)), h("td", { class: "cause-text", title: one.cause }, one.reason || h("span", { class: "dim" }, "no cause was recorded")),
          h("td", { class: "number" }, count(one.n)), h("td", { class: "bar-cell" }, h("span", { class: "facet-bar wide", "aria-hidden": "true" }, h("span", { style: { width: `${(100 * one.n) / most}%` } })), h("span", { class: "dim" }, percent(one.n / Math.max(1, found.attempts)))),
          h("td", { class: "number" }, one.scored ? `${count(one.passed)} of ${count(one.scored)} solved` : h("span", { class: "dim" }, "not scored")),
          h("td", {}, h("a", { href: link(["run", run, "sessions"], one.reason ? { status: one.status, cause: one.reason } : { status: one.status }) }, "sessions"), " · ", h("a", { href: link(["run", run, "session", one.example.id]) }, "example")))))))
        : h("p", { class: "nothing" }, "Every attempt that ended was completed."),
      h("h1", {}, "Tool calls that failed"),
      found.tools.length ? h("div", { class: "table-frame" }, h("table", { class: "plain-table" },
        h("thead", {}, h("tr", {}, ["tool", "failed", "of calls", "share", ""].map(name => h("th", { scope: "col" }, name)))),
        h("tbody", {}, found.tools.map(one => h("tr", {}, h("td", { class: "mono" }, one.value), h("td", { class: "number" }, count(one.failed)), h("td", { class: "number" }, count(one.calls)),
          h("td", { class: "bar-cell" }, h("span", { class: "facet-bar wide bad-bar", "aria-hidden": "true" }, h("span", { style: { width: `${(100 * one.failed) / Math.max(1, one.calls)}%` } })), h("span", { class: "dim" }, percent(one.failed / Math.max(1, one.calls)))),
          h("td", {}, h("a", { href: link(["run", run, "sessions"], { tool: one.value }) }, "sessions")))))))
        : h("p", { class: "nothing" }, "No tool call failed."));
  }
  return { element, title: `${run} · failures`, up: ["run", run, "sessions"], ready: draw, changed: draw, key: () => false };
}

export async function runsView() {
  const element = h("div", { class: "runs padded" });
  async function draw() {
    const found = await get(["runs"]);
    const now = Date.now() / 1000;
    put(element, h("h1", {}, "Runs"), h("p", { class: "dim mono" }, found.path),
      found.runs.length ? h("ul", { class: "run-list" }, found.runs.map(run => h("li", {}, h("a", { href: link(["run", run.name, "sessions"]) }, run.name.replaceAll("~", "/")),
        h("span", { class: "dim" }, run.changed ? `written ${ago(now - run.changed)}` : ""))))
        : h("p", { class: "nothing" }, "No run is here yet; it appears when its first session is recorded."));
  }
  return { element, title: "runs", up: null, ready: draw, polled: draw, key: () => false };
}

function ago(seconds) {
  if (seconds < 90) return "just now";
  if (seconds < 5400) return `${Math.round(seconds / 60)} minutes ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} hours ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}
