"""JavaScript that the driver runs in pages: functions of one element, with ``this`` bound to it."""

from __future__ import annotations

__all__ = [
    "CARET",
    "CHECKED",
    "COVERED",
    "FILL",
    "MINIWOB_START",
    "MINIWOB_STATE",
    "SELECT",
]

CARET = """
(() => {
  const hide = () => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync('* { caret-color: transparent !important; }');
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  };
  try { hide(); } catch { document.addEventListener('DOMContentLoaded', hide, {once: true}); }
})();
"""
"""Hides the blinking caret: equal states shall give equal pictures."""

COVERED = """
function (x, y) {
  if (window !== window.top) return '';
  let top = document.elementFromPoint(x, y);
  while (top && top.shadowRoot) {
    const inner = top.shadowRoot.elementFromPoint(x, y);
    if (!inner || inner === top) break;
    top = inner;
  }
  if (!top) return '';
  const own = this.nodeType === 1 ? this : this.parentElement;
  if (!own || own === top || own.contains(top) || top.contains(own)) return '';
  const label = own.closest && own.closest('label');
  if (label && label.contains(top)) return '';
  if (own.labels && [...own.labels].some(one => one.contains(top))) return '';
  const name = top.id ? '#' + top.id : (top.textContent || '').trim().slice(0, 40);
  return top.tagName.toLowerCase() + (name ? ' ' + name : '');
}
"""
"""What lies over an element at a point of its document; empty if nothing does."""

FILL = """
function (text) {
  const type = (this.type || '').toLowerCase();
  const tag = this.tagName;
  if (this.disabled || this.readOnly) return 'it is disabled or read-only';
  const set = ['color', 'date', 'time', 'datetime-local', 'month', 'range', 'week'];
  if (tag === 'INPUT' && set.includes(type)) {
    const before = this.value;
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(this, text);
    if (type !== 'range' && text && this.value !== text) {
      Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(this, before);
      return 'a field of type ' + type + ' takes no such value';
    }
    this.dispatchEvent(new Event('input', {bubbles: true}));
    this.dispatchEvent(new Event('change', {bubbles: true}));
    return 'done';
  }
  const not = ['button', 'checkbox', 'file', 'hidden', 'image', 'radio', 'reset', 'submit'];
  if ((tag === 'INPUT' && !not.includes(type)) || tag === 'TEXTAREA') {
    this.focus();
    this.select();
    return 'type';
  }
  if (this.isContentEditable) {
    this.focus();
    const range = document.createRange();
    range.selectNodeContents(this);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    return 'type';
  }
  return 'it takes no text';
}
"""
"""Makes an element ready for new text: ``type`` asks for it to be typed over the selection."""

SELECT = """
function (wanted) {
  if (this.tagName !== 'SELECT') return 'it is no drop-down field';
  if (this.disabled) return 'it is disabled';
  const options = [...this.options];
  const clean = text => text.replace(/\\s+/g, ' ').trim();
  const found = wanted.map(one => options.find(o => o.value === one)
    || options.find(o => clean(o.label || o.text) === clean(one)));
  const missing = wanted.filter((_, i) => !found[i]);
  if (missing.length) {
    const known = options.slice(0, 30).map(o => clean(o.label || o.text)).join(', ');
    return 'it has no option ' + missing[0] + '; its options are: ' + known;
  }
  if (!this.multiple && found.length !== 1) return 'it takes exactly one option';
  for (const option of options) option.selected = found.includes(option);
  this.dispatchEvent(new Event('input', {bubbles: true}));
  this.dispatchEvent(new Event('change', {bubbles: true}));
  return 'done';
}
"""

CHECKED = """
function () {
  const own = this.control || this;
  if ('checked' in own && own.checked !== undefined) return own.checked;
  const said = own.getAttribute && own.getAttribute('aria-checked');
  return said === null || said === undefined ? null : said === 'true';
}
"""
"""Whether a box is ticked; null if it is none."""

MINIWOB_START = """
([seed, milliseconds]) => {
  Math.seedrandom(seed);
  core.EPISODE_MAX_TIME = milliseconds;
  core.startEpisodeReal();
  // One episode a session: what would begin another one, with another task, does nothing.
  core.startEpisode = () => {};
  core.startEpisodeReal = () => {};
}
"""

MINIWOB_STATE = """
() => {
  const said = core.getUtterance();
  return {
    utterance: typeof said === 'string' ? said : said.utterance,
    done: WOB_DONE_GLOBAL,
    reward: WOB_REWARD_GLOBAL,
    raw: WOB_RAW_REWARD_GLOBAL,
    reason: WOB_REWARD_REASON === undefined ? null : WOB_REWARD_REASON,
  };
}
"""
