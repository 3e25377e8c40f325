// Texts as a person reads them: code, diffs, arguments of tools, long outputs folded.

import { button, count, h } from "./dom.js";

const FOLD = 22; // lines that are shown of a long text
const MOST = FOLD + 6; // lines that are shown whole

// Message text: fenced code becomes blocks; `code` and **strong** are marked. Nothing else is interpreted.
export function prose(text) {
  const found = [];
  const parts = text.split(/^```([^\n`]*)\n([\s\S]*?)(?:^```[ \t]*$|(?![\s\S]))/m);
  for (let at = 0; at < parts.length; at += 3) {
    if (parts[at].trim()) found.push(foldable(h("div", { class: "prose" }), parts[at].replace(/^\n+|\n+$/g, "").split("\n"), lines => inline(lines.join("\n"))));
    if (parts[at + 2] !== undefined) found.push(block(parts[at + 2].replace(/\n$/, "")));
  }
  return found;
}

function inline(text) {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map(part => {
    if (/^`.+`$/.test(part)) return h("code", {}, part.slice(1, -1));
    if (/^\*\*.+\*\*$/.test(part)) return h("strong", {}, part.slice(2, -2));
    return part;
  });
}

// Output or code: diffs coloured, more than a screen of it folded.
export function block(text, { label = "" } = {}) {
  const lines = text.split("\n");
  return h("div", { class: "block" }, label && h("div", { class: "block-label" }, label), foldable(h("pre", { tabindex: lines.length > MOST ? "0" : null }), lines, coloured));
}

// An element with the first lines, and a button that shows all of them if there are many.
function foldable(body, lines, render) {
  const draw = all => body.replaceChildren(...render(all ? lines : lines.slice(0, FOLD)));
  draw(lines.length <= MOST);
  if (lines.length <= MOST) return body;
  let open = false;
  const toggle = button(`Show all ${count(lines.length)} lines`, () => {
    open = !open;
    draw(open);
    toggle.textContent = open ? "Show less" : `Show all ${count(lines.length)} lines`;
    toggle.setAttribute("aria-expanded", String(open));
  }, { class: "fold", "aria-expanded": "false" });
  return h("div", {}, body, toggle);
}

// Lines of a unified diff, wherever in the text it is; its headers say how long it is.
export function diffKinds(lines) {
  const kinds = new Array(lines.length).fill("");
  let before = 0;
  let after = 0;
  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at];
    const hunk = /^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@/.exec(line);
    if (hunk) {
      kinds[at] = "hunk";
      before = Number(hunk[1] ?? 1);
      after = Number(hunk[2] ?? 1);
    } else if (before > 0 || after > 0) {
      if (line.startsWith("+")) { kinds[at] = "added"; after -= 1; }
      else if (line.startsWith("-")) { kinds[at] = "removed"; before -= 1; }
      else if (line.startsWith(" ") || line === "") { before -= 1; after -= 1; }
      else if (!line.startsWith("\\")) { before = 0; after = 0; }
    } else if (/^(diff --git |index [0-9a-f]+\.\.|--- \S|\+\+\+ \S)/.test(line)) kinds[at] = "file";
  }
  return kinds.includes("hunk") ? kinds : null;
}

function coloured(lines) {
  const kinds = diffKinds(lines);
  if (!kinds) return [lines.join("\n")];
  return lines.map((line, at) => (kinds[at] ? h("span", { class: `diff-${kinds[at]}` }, `${line}\n`) : `${line}\n`));
}

// The difference of two texts by lines, as lines with their kinds.
export function lineDiff(before, after) {
  const a = before.split("\n");
  const b = after.split("\n");
  if (a.length * b.length > 250000) return [...a.map(x => ["-", x]), ...b.map(x => ["+", x])];
  const best = Array.from({ length: a.length + 1 }, () => new Uint32Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) best[i][j] = a[i] === b[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
  }
  const found = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { found.push([" ", a[i]]); i += 1; j += 1; }
    else if (j >= b.length || (i < a.length && best[i + 1][j] >= best[i][j + 1])) { found.push(["-", a[i]]); i += 1; }
    else { found.push(["+", b[j]]); j += 1; }
  }
  return found;
}

const OLD = ["old", "old_str", "old_string", "old_text", "search"];
const NEW = ["new", "new_str", "new_string", "new_text", "replace"];
const SHELL = ["command", "cmd", "script", "code"];

// A tool call's arguments; JSON objects by name, edits as diffs, others as they are.
export function argumentsOf(text) {
  let given;
  try { given = JSON.parse(text); } catch { return text ? [block(text)] : []; }
  if (given === null || typeof given !== "object" || Array.isArray(given)) return [block(JSON.stringify(given, null, 1))];
  const names = Object.keys(given);
  const before = OLD.find(name => typeof given[name] === "string");
  const after = NEW.find(name => typeof given[name] === "string");
  const found = [];
  const short = [];
  for (const name of names) {
    const value = given[name];
    if (before && after && (name === before || name === after)) {
      if (name === names.filter(n => n === before || n === after)[0]) found.push(edit(given[before], given[after]));
    } else if (typeof value === "string" && SHELL.includes(name)) found.push(block(value));
    else if (typeof value === "string" && (value.includes("\n") || value.length > 100)) found.push(block(value, { label: name }));
    else short.push(h("span", { class: "argument" }, h("span", { class: "argument-name" }, name), typeof value === "string" ? value : JSON.stringify(value)));
  }
  return [short.length ? h("div", { class: "arguments" }, short) : null, ...found].filter(Boolean);
}

function edit(before, after) {
  const kinds = { "-": "removed", "+": "added", " ": "" };
  return h("div", { class: "block" }, h("pre", {}, lineDiff(before, after).map(([sign, line]) =>
    h("span", { class: kinds[sign] ? `diff-${kinds[sign]}` : null }, `${sign} ${line}\n`))));
}

// Marks the words of a search in an element, without changing it.
export function highlight(element, words) {
  const ranges = [];
  if (!words.length) return ranges;
  const walk = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const text = node.data.toLowerCase();
    for (const word of words) {
      for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + word.length)) {
        if (at + word.length > node.data.length) break;
        const range = new Range();
        range.setStart(node, at);
        range.setEnd(node, at + word.length);
        ranges.push(range);
      }
    }
  }
  return ranges;
}

export const wordsOf = query =>
  [...query.matchAll(/(-?)"([^"]*)"|(\S+)/g)]
    .filter(([, minus, , word]) => !minus && !(word || "").startsWith("-"))
    .map(([, , phrase, word]) => (phrase || word || "").toLowerCase())
    .filter(Boolean);
