// A list of any length: only the rows that can be seen are elements, and they are fetched in pages.

import { h } from "./dom.js";

const PAGE = 100;

export class VirtualList {
  // fetchPage(offset, limit) -> {total, rows}; render(row, index) -> children; open(row).
  constructor({ label, rowHeight, fetchPage, render, open, onTotal }) {
    Object.assign(this, { rowHeight, fetchPage, render, open, onTotal });
    this.pages = new Map();
    this.total = 0;
    this.at = -1;
    this.generation = 0;
    this.space = h("div", { class: "list-space", role: "presentation" });
    this.element = h("div", {
      class: "list", role: "listbox", tabindex: "0", "aria-label": label,
      onscroll: () => this.draw(), onkeydown: event => this.key(event),
    }, this.space);
    this.rows = new Map();
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  // Fetches everything that is shown anew; the rows stay until then.
  async reload({ top = false } = {}) {
    this.generation += 1;
    const generation = this.generation;
    if (top) { this.element.scrollTop = 0; this.at = -1; }
    const first = Math.floor(this.element.scrollTop / this.rowHeight / PAGE);
    const shown = Math.ceil(this.element.clientHeight / this.rowHeight / PAGE) + 1;
    const pages = await Promise.all(Array.from({ length: top ? 1 : shown }, (_, k) => this.fetchPage((first + k) * PAGE, PAGE)));
    if (generation !== this.generation) return;
    this.pages = new Map(pages.map((page, k) => [first + k, page.rows]));
    this.total = pages[0].total;
    this.onTotal?.(this.total);
    this.rows.forEach(row => row.remove());
    this.rows.clear();
    this.draw();
  }

  row(index) { return this.pages.get(Math.floor(index / PAGE))?.[index % PAGE]; }

  draw() {
    this.space.style.height = `${this.total * this.rowHeight}px`;
    const first = Math.max(0, Math.floor(this.element.scrollTop / this.rowHeight) - 8);
    const last = Math.min(this.total, first + Math.ceil(this.element.clientHeight / this.rowHeight) + 16);
    for (const [index, row] of this.rows) {
      if (index < first || index >= last) { row.remove(); this.rows.delete(index); }
    }
    for (let index = first; index < last; index += 1) {
      const value = this.row(index);
      if (!value) { this.need(Math.floor(index / PAGE)); continue; }
      if (!this.rows.has(index)) this.add(index, value);
    }
    this.mark();
  }

  add(index, value) {
    const row = h("div", {
      class: "row", role: "option", id: `row-${index}`, "aria-setsize": this.total, "aria-posinset": index + 1,
      style: { transform: `translateY(${index * this.rowHeight}px)`, height: `${this.rowHeight}px` },
      onclick: () => { this.at = index; this.open(value); },
    }, this.render(value, index));
    this.rows.set(index, row);
    this.space.append(row);
  }

  async need(page) {
    if (this.pages.has(page)) return;
    this.pages.set(page, []);
    const generation = this.generation;
    try {
      const found = await this.fetchPage(page * PAGE, PAGE);
      if (generation === this.generation) { this.pages.set(page, found.rows); this.draw(); }
    } catch (error) {
      this.pages.delete(page);
      this.space.dispatchEvent(new CustomEvent("problem", { bubbles: true, detail: error }));
    }
  }

  mark() {
    for (const [index, row] of this.rows) row.setAttribute("aria-selected", String(index === this.at));
    if (this.at >= 0) this.element.setAttribute("aria-activedescendant", `row-${this.at}`);
  }

  move(by) { this.select(Math.min(Math.max(this.at + by, 0), this.total - 1)); }

  select(index) {
    if (!this.total) return;
    this.at = index;
    const top = index * this.rowHeight;
    const height = this.element.clientHeight;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    if (top + this.rowHeight > this.element.scrollTop + height) this.element.scrollTop = top + this.rowHeight - height;
    this.draw();
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.rowHeight) - 1);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in moves) { this.move(moves[event.key]); event.preventDefault(); event.stopPropagation(); }
    if (event.key === "Enter" && this.row(this.at)) { this.open(this.row(this.at)); event.preventDefault(); }
  }
}
