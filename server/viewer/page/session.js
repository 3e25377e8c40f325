// A session: its conversation, tree, rewards and tokens, with what is known about the turn at hand.

import { button, count, debounce, put, fixed, h, hue, moment, pill, plural, seconds, signed } from "./dom.js";
import { embedded, get } from "./data.js";
import { link, note } from "./route.js";
import { columnsOf, barOf, deriverChoice, rewardTable, termsOf } from "./rewards.js";
import { highlight, wordsOf } from "./text.js";
import { tokenView } from "./tokens.js";
import { drawTree } from "./tree.js";
import { deedOf, endingOf, failed, searchText, textSize, titleOf, turnBody, turnFacts } from "./turn.js";

const TABS = { conversation: "Conversation", tree: "Tree", rewards: "Rewards", tokens: "Tokens" };

export async function sessionView(run, id, query, shell) {
  let session = await get(["runs", run, "sessions", id]);
  const first = new URLSearchParams(query);
  const state = {
    tab: first.get("tab") in TABS ? first.get("tab") : "conversation",
    attempt: Math.min(Number(first.get("attempt") ?? 0) || 0, Math.max(0, session.attempts.length - 1)),
    turn: first.has("turn") ? Number(first.get("turn")) : null,
    text: first.get("text") ?? "",
    derivers: first.getAll("with"),
    mode: first.get("tokens") ?? "logprob",
  };
  let columns = columnsOf(session, []);
  let current = null;

  const save = () => note(["run", run, "session", id], {
    tab: state.tab === "conversation" ? null : state.tab, attempt: state.attempt || null, turn: state.turn,
    text: state.text, with: state.derivers, tokens: state.mode === "logprob" ? null : state.mode,
  });

  // Browsers limit how often an address may change, and ignore links for a while after it.
  const saveSoon = debounce(save);

  // Parts of the page -----------------------------------------------------------------------

  const tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Views of the session" },
    Object.entries(TABS).map(([name, label], at) => h("button", {
      type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "session-main", "data-tab": name, onclick: () => show(name),
      title: `Key ${at + 1}`,
    }, label)));
  const search = h("input", {
    type: "search", placeholder: "Find in session  /", "aria-label": "Find in session", value: state.text, class: "find",
    oninput: debounce(() => { state.text = search.value; save(); find(); }),
    onkeydown: event => {
      if (event.key === "Enter") { state.text = search.value; save(); find(); jump(event.shiftKey ? -1 : 1); event.preventDefault(); }
      if (event.key === "Escape" && search.value) { search.value = ""; state.text = ""; save(); find(); event.stopPropagation(); }
    },
  });
  const hits = h("span", { class: "dim", role: "status" });
  const attempts = h("select", { "aria-label": "Attempt", onchange: () => { state.attempt = Number(attempts.value); state.turn = null; save(); draw(); } });
  const head = h("header", { class: "session-head" });
  const main = h("div", { class: "session-main", id: "session-main", role: "tabpanel", tabindex: "-1" });
  const outline = h("nav", { class: "outline", "aria-label": "Turns" });
  const side = h("aside", { class: "inspector", "aria-label": "Turn" });
  const choice = deriverChoice(state.derivers, async names => { state.derivers = names; save(); await derive(); });
  state.derivers = choice.names;
  const element = h("div", { class: "session" }, head,
    h("div", { class: "toolbar" }, tabs, attempts, h("span", { class: "grow" }), hits, search),
    h("div", { class: "session-grid" }, outline, main, side));

  const path = () => session.attempts[state.attempt]?.path ?? session.turns.map(turn => turn.index);
  const acting = new Map(); // the turn that acted on what a turn showed, on the path that is shown

  async function derive() {
    if (!session.turns.length || !state.derivers.length) { columns = columnsOf(session, []); refreshValues(); return; }
    try {
      columns = columnsOf(session, await get(["runs", run, "sessions", id, "values"], { with: state.derivers }));
    } catch (error) { shell.problem(error); }
    refreshValues();
  }

  function refreshValues() {
    if (state.tab === "rewards" || state.tab === "tree") {
      const focused = document.activeElement?.classList.contains("tree-frame");
      drawMain();
      if (focused) main.querySelector(".tree-frame")?.focus();
    }
    for (const card of main.querySelectorAll(".turn[data-built]")) chips(card);
    inspect();
    drawOutline();
  }

  function drawHead() {
    const attempt = session.attempts[state.attempt] ?? session.attempts[0];
    const time = session.turns.reduce((sum, turn) => sum + turn.policy_seconds + turn.env_seconds, 0);
    const tokens = session.turns.reduce((sum, turn) => sum + (turn.tokens?.response ?? turn.usage?.completion_tokens ?? 0), 0);
    const labels = Object.entries(session.labels);
    put(head, 
      h("div", { class: "session-title" }, h("h1", {}, session.task),
        attempt && pill(attempt.status, attempt.passed),
        attempt && attempt.score !== null && h("strong", {}, `score ${fixed(attempt.score)}`),
        attempt?.cause && h("span", { class: "cause", title: attempt.cause }, attempt.cause.split("\n")[0])),
      h("div", { class: "session-facts" },
        h("span", { class: "mono" }, session.id), h("span", {}, session.env), h("span", {}, plural(session.turns.length, "turn")),
        tokens > 0 && h("span", {}, plural(tokens, "token")), time > 0 && h("span", {}, seconds(time)),
        session.seed !== null && h("span", {}, `seed ${session.seed}`),
        session.created > 0 && h("span", {}, moment(session.created)),
        session.group && (embedded || !session.grouped ? h("span", {}, `group ${session.group}`) : h("a", { href: link(["run", run, "group", session.group], { of: session.id }) }, `group ${session.group}, sample ${session.sample}: compare`)),
        labels.map(([name, value]) => h("span", { class: "chip" }, `${name} ${value}`))));
    attempts.hidden = session.attempts.length < 2;
    put(attempts, ...session.attempts.map(one => h("option", { value: one.number }, `Attempt ${one.number}: ${one.passed ? "solved" : one.status}${one.score === null ? "" : `, ${fixed(one.score)}`}`)));
    attempts.value = String(state.attempt);
  }

  // Turns -------------------------------------------------------------------------------------

  const builder = new IntersectionObserver(entries => {
    for (const entry of entries) {
      if (entry.isIntersecting) { builder.unobserve(entry.target); build(entry.target); }
    }
  }, { root: main, rootMargin: "1200px" });
  const reader = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting && Date.now() > quiet) setCurrent(Number(entry.target.dataset.turn), saveSoon);
  }, { root: main, rootMargin: "-15% 0px -75% 0px" });
  let quiet = 0; // until when scrolling is not the reader's

  function build(card) {
    if (card.dataset.built) return;
    card.dataset.built = "1";
    const turn = session.turns[Number(card.dataset.turn)];
    card.style.removeProperty("min-height");
    put(card,
      h("header", { class: "turn-head" }, h("span", { class: "turn-number" }, `${turn.index}`), turnFacts(turn), h("span", { class: "grow" }), h("span", { class: "chips" })),
      h("div", { class: "turn-body" }, turnBody(turn, {
        run, next: one => acting.get(one.index),
        whole: async one => { session.turns[one.index] = await get(["runs", run, "sessions", id, "turns", one.index]); delete card.dataset.built; build(card); },
      })));
    chips(card);
    paint(card);
  }

  function cardOf(index) {
    const turn = session.turns[index];
    const size = 90 + Math.min(800, textSize(turn) / 6);
    return h("article", {
      class: `turn${turn.agent === "main" ? "" : " turn-agent"}`, id: `turn-${index}`, "data-turn": index, tabindex: "-1",
      "aria-label": `Turn ${index}: ${titleOf(turn)}`, style: { "min-height": `${size}px`, "--hue": hue(turn.agent) },
      onclick: () => setCurrent(index),
    });
  }

  function chips(card) {
    const turn = session.turns[Number(card.dataset.turn)];
    const found = columns.filter(column => column.turns?.[turn.index]).map(column => worth(column.name, column.turns[turn.index].value));
    if (turn.reward !== null) found.unshift(worth("env", turn.reward));
    card.querySelector(".chips").replaceChildren(...found);
  }

  const worth = (name, value) => h("span", { class: `chip ${value > 1e-12 ? "chip-good" : value < -1e-12 ? "chip-bad" : ""}` }, `${name} ${signed(value)}`);

  function drawConversation() {
    const shown = path();
    const cards = shown.map(cardOf);
    const attempt = session.attempts[state.attempt];
    quiet = Date.now() + 900;
    put(main, h("div", { class: "turns" }, cards.length ? cards : h("p", { class: "nothing" }, "No turn has been recorded yet."),
      attempt && attempt.status !== "running" && endingOf(attempt), attempt?.status === "running" && h("p", { class: "nothing" }, "The session is running; turns appear as they are recorded.")));
    for (const card of cards) { builder.observe(card); reader.observe(card); }
    main.querySelector(`#turn-${current}`)?.classList.add("is-current");
  }

  function drawMain() {
    const open = index => { show("conversation"); goTo(index); };
    if (state.tab === "conversation") drawConversation();
    else if (state.tab === "tree") {
      const led = leading();
      const largest = led ? Math.max(...led.turns.map(part => Math.abs(part.value)), 1e-9) : 1;
      const tree = drawTree(session, { worth: led && (index => (led.turns[index]?.value ?? 0) / largest), worthOf: led?.name, chosen: state.turn ?? path()[0], select: index => { setCurrent(index); tree.mark(index); }, open });
      put(main, tree);
      if (session.turns.length) queueMicrotask(() => { tree.mark(state.turn ?? path()[0]); setCurrent(state.turn ?? path()[0]); });
    } else if (state.tab === "rewards") put(main, h("div", { class: "padded" }, choice.element, rewardTable(session, path(), columns, { open })));
    else put(main, h("div", { class: "padded" }, tokenView(session, path(), { root: main, run, mode: state.mode, texts: shell.texts, open, changed: mode => { state.mode = mode; save(); } })));
  }

  // The values that the outline and the tree show: the first advantages, else the first values.
  const leading = () => columns.find(column => column.turns && column.kind === "advantages") ?? columns.find(column => column.turns);

  function drawOutline() {
    const led = leading();
    const most = led ? Math.max(...led.turns.map(part => Math.abs(part.value)), 0) : 0;
    const top = outline.scrollTop;
    put(outline, led && h("div", { class: "outline-head dim" }, led.name), ...path().map(index => {
      const turn = session.turns[index];
      const part = led?.turns[index];
      return h("button", {
        type: "button", class: `outline-turn${failed(turn) ? " has-failed" : ""}${turn.agent === "main" ? "" : " of-agent"}`, "data-turn": index, tabindex: "-1",
        style: { "--hue": hue(turn.agent) }, "aria-current": index === current ? "true" : null, onclick: () => (state.tab === "conversation" ? goTo(index) : pick(index)),
      }, h("span", { class: "outline-number" }, index), h("span", { class: "outline-title", title: deedOf(turn) }, deedOf(turn)), part && barOf(part.value, most));
    }));
    outline.scrollTop = top;
  }

  function pick(index) {
    setCurrent(index);
    main.querySelector(".tree-view")?.mark?.(index);
    main.querySelector(`.token-turn[data-turn="${index}"]`)?.scrollIntoView({ block: "start" });
  }

  function goTo(index) {
    const card = main.querySelector(`#turn-${index}`);
    if (!card) return;
    quiet = Date.now() + 400;
    build(card);
    card.scrollIntoView({ block: "start" });
    setCurrent(index);
    card.focus({ preventScroll: true });
  }

  function setCurrent(index, write = save) {
    if (!session.turns[index]) return;
    current = index;
    state.turn = index;
    write();
    for (const one of main.querySelectorAll(".turn.is-current")) one.classList.remove("is-current");
    main.querySelector(`#turn-${index}`)?.classList.add("is-current");
    for (const one of outline.querySelectorAll("[aria-current]")) one.removeAttribute("aria-current");
    const here = outline.querySelector(`[data-turn="${index}"]`);
    here?.setAttribute("aria-current", "true");
    here?.scrollIntoView({ block: "nearest" });
    inspect();
  }

  function inspect() {
    const turn = session.turns[current ?? path()[0]];
    if (!turn) { put(side); return; }
    const rows = columns.filter(column => column.turns?.[turn.index]);
    const largest = rows.map(column => Math.max(...column.turns.map(part => Math.abs(part.value)), 0));
    const facts = [
      ["Policy", turn.policy], ["Agent", turn.agent === "main" ? "" : turn.agent], ["Edge", turn.edge === "continue" ? "" : `${turn.edge} of ${turn.parent}`], ["Rule", turn.rule],
      ["Finish", turn.finish], ["Tokens", turn.tokens ? `${count(turn.tokens.prompt)} + ${count(turn.tokens.response)}` : turn.usage ? `${count(turn.usage.prompt_tokens)} + ${count(turn.usage.completion_tokens)} (reported)` : ""],
      ["Mean log-prob", turn.tokens ? fixed(turn.tokens.logprob) : ""],
      ["Versions", turn.tokens && turn.tokens.low >= 0 ? (turn.tokens.low === turn.tokens.high ? `${turn.tokens.low}` : `${turn.tokens.low} to ${turn.tokens.high}`) : ""],
      ["Temperature", turn.sampling?.temperature ?? ""], ["Began", moment(turn.started)], ["Policy time", seconds(turn.policy_seconds)], ["Environment time", seconds(turn.env_seconds)],
      ["Attempt", session.attempts.length > 1 ? turn.attempt : ""], ["Ended episode", turn.done ? "yes" : ""],
    ].filter(([, value]) => value !== "" && value !== null && value !== undefined);
    const signals = typeof turn.signals === "string" ? [["signals", turn.signals]] : Object.entries(turn.signals);
    put(side, 
      h("h2", {}, `Turn ${turn.index}`, h("span", { class: "dim" }, ` ${titleOf(turn)}`)),
      h("section", {}, h("h3", {}, "Worth"), turn.reward !== null && h("div", { class: "worth-row" }, h("span", {}, "environment"), h("strong", { class: "number" }, signed(turn.reward))),
        rows.map((column, k) => h("div", { class: "worth-row" }, h("span", { title: column.kind }, column.name), barOf(column.turns[turn.index].value, largest[k]), h("strong", { class: "number" }, signed(column.turns[turn.index].value)), termsOf(column.turns[turn.index]))),
        columns.filter(column => column.problem).map(column => h("div", { class: "worth-row dim", title: column.problem }, h("span", {}, column.name), h("span", {}, ""), h("span", { class: "number" }, "none"))),
        button("Choose derivers", () => { show("rewards"); choice.element.open = true; }, { class: "link" })),
      h("section", {}, h("h3", {}, "Turn"), h("dl", { class: "facts" }, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]))),
      signals.length > 0 && h("section", {}, h("h3", {}, "Signals"), h("dl", { class: "facts" }, signals.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, (typeof value === "string" ? value : typeof value === "number" ? fixed(value, 5) : JSON.stringify(value)).slice(0, 800))]))));
  }

  // Search --------------------------------------------------------------------------------------

  let found = [];
  let painted = [];

  function find() {
    const words = wordsOf(state.text);
    found = words.length ? path().filter(index => { const text = searchText(session.turns[index]); return words.every(word => text.includes(word)); }) : [];
    hits.textContent = words.length ? `${plural(found.length, "turn")} found` : "";
    outline.querySelectorAll(".outline-turn").forEach(one => one.classList.toggle("is-found", found.includes(Number(one.dataset.turn))));
    painted = [];
    for (const card of main.querySelectorAll(".turn[data-built]")) paint(card, { keep: true });
    repaint();
  }

  function paint(card, { keep = false } = {}) {
    painted.push(...highlight(card, wordsOf(state.text)));
    if (!keep) repaint();
  }

  function repaint() {
    if (globalThis.CSS?.highlights) CSS.highlights.set("found", new Highlight(...painted));
  }

  function jump(by) {
    if (!found.length) return;
    if (state.tab !== "conversation") show("conversation");
    const after = found.findIndex(index => index > (current ?? -1));
    const before = found.findLastIndex(index => index < (current ?? 0));
    goTo(by > 0 ? found[after < 0 ? 0 : after] : found.at(before < 0 ? -1 : before));
  }

  // Life ----------------------------------------------------------------------------------------

  function show(name) {
    state.tab = name;
    save();
    for (const tab of tabs.children) {
      const chosen = tab.dataset.tab === name;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
    }
    main.setAttribute("aria-labelledby", `tab-${name}`);
    drawMain();
    if (name === "conversation" && state.turn !== null) queueMicrotask(() => goTo(state.turn));
  }

  function draw() {
    current = session.turns[state.turn] ? state.turn : path()[0] ?? null;
    acting.clear();
    for (const index of path()) { const turn = session.turns[index]; if (turn.parent !== null) acting.set(turn.parent, turn); }
    drawHead();
    drawOutline();
    show(state.tab);
    find();
    inspect();
  }

  draw();
  setTimeout(derive, 40); // after the conversation can be read

  return {
    element,
    title: `${session.task} · ${id}`,
    up: embedded ? null : ["run", run, "sessions"],
    focusSearch: () => search.focus(),
    ready: () => { if (state.turn !== null && state.tab === "conversation") goTo(state.turn); },
    // New turns of a running session: what is there stays where it is.
    async changed() {
      if (!session.attempts.some(attempt => attempt.status === "running")) {
        return;
      }
      const before = session;
      const known = path().length;
      session = await get(["runs", run, "sessions", id]);
      const same = before.turns.length === session.turns.length && before.attempts.length === session.attempts.length
        && JSON.stringify(before.attempts.map(a => [a.status, a.score])) === JSON.stringify(session.attempts.map(a => [a.status, a.score]));
      if (same) return;
      const bottom = main.scrollHeight - main.scrollTop - main.clientHeight < 80;
      acting.clear();
      for (const index of path()) { const turn = session.turns[index]; if (turn.parent !== null) acting.set(turn.parent, turn); }
      drawHead();
      if (state.tab === "conversation" && session.attempts[state.attempt]?.status === "running" && known) {
        const list = main.querySelector(".turns");
        for (const index of path().slice(known)) { const card = cardOf(index); list.insertBefore(card, list.lastElementChild); builder.observe(card); reader.observe(card); }
        const last = main.querySelector(`#turn-${path()[known - 1]}`);
        if (last) { delete last.dataset.built; build(last); }
      } else {
        const top = main.scrollTop;
        drawMain();
        main.scrollTop = top;
      }
      drawOutline();
      await derive();
      if (bottom) main.scrollTop = main.scrollHeight;
    },
    key(event) {
      const order = path();
      const at = order.indexOf(current ?? -1);
      if (event.key === "j" || event.key === "k") {
        const next = order[Math.min(Math.max(at + (event.key === "j" ? 1 : -1), 0), order.length - 1)];
        if (next !== undefined) { state.tab === "conversation" ? goTo(next) : pick(next); }
        return true;
      }
      if (event.key === "n" || event.key === "N") { jump(event.key === "n" ? 1 : -1); return true; }
      const tab = Object.keys(TABS)[Number(event.key) - 1];
      if (tab) { show(tab); return true; }
      if (event.key === "g" && session.grouped && !embedded) { location.hash = link(["run", run, "group", session.group], { of: session.id }); return true; }
      return false;
    },
  };
}
