// The sampled tokens of a session, coloured by log-prob, policy version or loss mask.

import { button, count, put, fixed, h } from "./dom.js";
import { get } from "./data.js";
import { deedOf } from "./turn.js";

export const MODES = { logprob: "log-prob", version: "policy version", mask: "loss mask" };
const LOWEST = -6;

export function tokenView(session, path, view) {
  const body = h("div", { class: "token-turns" });
  const legend = h("div", { class: "legend" });
  let mode = view.mode in MODES ? view.mode : "logprob";
  const held = new Map();
  const versions = session.turns.flatMap(turn => (turn.tokens && turn.tokens.low >= 0 ? [turn.tokens.low, turn.tokens.high] : []));
  const range = versions.length ? [Math.min(...versions), Math.max(...versions)] : [0, 0];

  const switches = h("div", { class: "segmented", role: "radiogroup", "aria-label": "Colour tokens by" },
    Object.entries(MODES).map(([name, label]) => h("button", {
      type: "button", role: "radio", "aria-checked": String(name === mode),
      onclick: event => {
        mode = name;
        view.changed(mode);
        for (const one of switches.children) one.setAttribute("aria-checked", String(one === event.currentTarget));
        for (const [element, found] of held) colour(element, found);
        explain();
      },
    }, label)));

  const watcher = new IntersectionObserver(entries => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      watcher.unobserve(entry.target);
      load(entry.target);
    }
  }, { root: view.root, rootMargin: "600px" });

  async function load(element) {
    const index = Number(element.dataset.turn);
    try {
      const found = await get(["runs", view.run, "sessions", session.id, "turns", index, "tokens"]);
      element.querySelector(".token-body").replaceChildren(...(found ? flow(element, found) : ["text turn: no token ids were recorded"]));
    } catch (error) { element.querySelector(".token-body").textContent = error.message; }
  }

  function flow(element, found) {
    const spans = new Map();
    for (const [kind, start, end] of found.spans) for (let k = start; k < end; k += 1) spans.set(k, kind);
    const response = found.response.map((identity, k) => h("span", { class: "token", "data-at": k, title: describe(found, k, spans.get(k)) }, tokenText(found.texts?.[k], identity)));
    const prompt = found.prompt.length + found.cut;
    const before = h("details", { class: "prompt-tokens" }, h("summary", {}, `${count(found.kept)} kept and ${count(prompt)} new prompt tokens`));
    before.addEventListener("toggle", () => {
      if (before.childElementCount > 1) return;
      before.append(h("div", { class: "token-flow" }, found.prompt.map((identity, k) => h("span", { class: "token is-prompt", title: `prompt id ${identity}` }, tokenText(found.prompt_texts?.[k], identity)))));
    });
    held.set(element, found);
    const shown = h("div", { class: `token-flow${found.texts ? "" : " token-ids"}` }, response);
    queueMicrotask(() => colour(element, found));
    return [before, shown, found.why && h("p", { class: "note" }, found.trained ? `Not trained: ${found.why}` : `No training row: ${found.why}`)].filter(Boolean);
  }

  function colour(element, found) {
    for (const token of element.querySelectorAll(".token[data-at]")) {
      const k = Number(token.dataset.at);
      const sampled = found.sampled[k];
      token.className = "token";
      token.style.removeProperty("--strength");
      token.style.removeProperty("--hue");
      if (!sampled && mode !== "mask") token.classList.add("is-inserted");
      else if (mode === "logprob") {
        token.classList.add("by-logprob");
        token.style.setProperty("--strength", String(Math.min(1, found.logprobs[k] / LOWEST)));
      } else if (mode === "version") {
        token.classList.add("by-version");
        token.style.setProperty("--hue", String(hueOf(found.low[k])));
        if (found.low[k] !== found.high[k]) token.classList.add("is-range");
      } else token.classList.add(!sampled ? "is-inserted" : !found.trained ? "is-unknown" : found.trained[k] ? "is-trained" : "is-masked");
    }
  }

  const hueOf = version => (range[0] === range[1] ? 210 : 210 - (190 * (version - range[0])) / (range[1] - range[0]));

  function explain() {
    const sample = (name, style, text) => h("span", {}, h("span", { class: `token ${name}`, style }, "token"), ` ${text}`);
    const samples = {
      logprob: [0, -1, -3, LOWEST].map(value => sample("by-logprob", { "--strength": Math.min(1, value / LOWEST) }, value === LOWEST ? `${value} or less` : `${value} (p ${fixed(Math.exp(value), 2)})`)),
      version: (range[1] - range[0] < 8 ? Array.from({ length: range[1] - range[0] + 1 }, (_, k) => range[0] + k) : range).map(version => sample("by-version", { "--hue": hueOf(version) }, `v${version}`)),
      mask: [sample("is-trained", {}, "trained"), sample("is-masked", {}, "sampled, not trained"), sample("is-unknown", {}, "no training row")],
    };
    put(legend, ...samples[mode], sample("is-inserted", {}, "inserted, never trained"));
  }

  explain();
  for (const index of path) {
    const turn = session.turns[index];
    const element = h("section", { class: "token-turn", "data-turn": index },
      h("header", {}, button(`#${index}`, () => view.open(index), { class: "plain" }), h("span", { class: "token-deed" }, deedOf(turn)),
        turn.tokens && turn.tokens.logprob !== null && h("span", { class: "dim" }, `mean log-prob ${fixed(turn.tokens.logprob)}`)),
      h("div", { class: "token-body" }, turn.tokens ? "…" : "text turn: no token ids were recorded"));
    if (turn.tokens) watcher.observe(element);
    body.append(element);
  }
  const plain = !view.texts && session.turns.some(turn => turn.tokens && !turn.synthetic);
  return h("div", { class: "token-view" }, h("div", { class: "toolbar" }, h("span", { class: "dim" }, "Colour by"), switches), legend,
    plain && h("p", { class: "note" }, "Ids are shown as numbers; start the viewer with --tokenizer NAME to see their texts."), body);
}

function tokenText(text, identity) {
  if (text === undefined) return String(identity);
  return text === "" ? "·" : text.replaceAll("\n", "↵\n");
}

function describe(found, k, span) {
  const parts = [`id ${found.response[k]}`];
  if (found.sampled[k]) {
    parts.push(`log-prob ${fixed(found.logprobs[k], 4)} (p ${fixed(Math.exp(found.logprobs[k]), 3)})`);
    parts.push(found.low[k] === found.high[k] ? `version ${found.low[k]}` : `version ${found.low[k]} to ${found.high[k]}`);
  } else parts.push("inserted");
  if (found.trained) parts.push(found.trained[k] ? "trained" : "not trained");
  if (span) parts.push(span.replace("_", " "));
  return parts.join("\n");
}

