"""JavaScript that the driver runs in pages: functions of one element, with ``this`` bound to it."""

from __future__ import annotations

__all__ = [
    "AREA_MIDDLE",
    "CARET",
    "CHECKED",
    "COVERED",
    "FILL",
    "HTTP_STATUS",
    "MINIWOB_START",
    "MINIWOB_STATE",
    "SEEDED",
    "SELECT",
]

AREA_MIDDLE = """
function () {
  if (this.tagName !== 'AREA') return null;
  const map = this.closest('map');
  const image = map && [...this.getRootNode().querySelectorAll('img[usemap],object[usemap]')].find(
    one => one.useMap === '#' + map.name);
  const at = this.coords.split(',').map(Number);
  if (!image || at.length < 3) return null;
  image.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});
  const box = image.getBoundingClientRect();
  const mean = from => {
    const some = at.length === 3 ? [at[from]] : at.filter((_, i) => i % 2 === from);
    return some.reduce((sum, one) => sum + one, 0) / some.length;
  };
  let x = box.x + image.clientLeft + mean(0), y = box.y + image.clientTop + mean(1);
  for (let view = this.ownerDocument.defaultView; view !== view.top; view = view.parent) {
    const frame = view.frameElement;
    if (!frame) return null;  // of another origin
    x += frame.getBoundingClientRect().x + frame.clientLeft;
    y += frame.getBoundingClientRect().y + frame.clientTop;
  }
  return [x, y];
}
"""
"""Scrolls the image of an area into view; returns the middle of the area in the view, or null."""

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
"""Hides the blinking caret: equal states give equal pictures."""

SEEDED = """
seed => {
  let state = seed >>> 0;
  const next = () => {  // mulberry32
    state = state + 0x6D2B79F5 | 0;
    let mixed = Math.imul(state ^ state >>> 15, 1 | state);
    mixed = mixed + Math.imul(mixed ^ mixed >>> 7, 61 | mixed) ^ mixed;
    return (mixed ^ mixed >>> 14) >>> 0;
  };
  Math.random = () => next() / 4294967296;
  Crypto.prototype.getRandomValues = function (array) {
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    for (let i = 0; i < bytes.length; i++) bytes[i] = next();
    return array;
  };
  Crypto.prototype.randomUUID = function () {
    const bytes = this.getRandomValues(new Uint8Array(16));
    bytes[6] = bytes[6] & 15 | 64;
    bytes[8] = bytes[8] & 63 | 128;
    const digits = [...bytes].map(one => one.toString(16).padStart(2, '0')).join('');
    return digits.replace(/(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
  };
}
"""
"""Seeds the random numbers of a page; every document starts from the seed."""

COVERED = """
function (top) {
  const above = (node, other) => {
    for (let n = node; n; n = n.parentNode || n.host || n.defaultView?.frameElement) {
      if (n === other) return true;
    }
    return false;
  };
  const own = this.nodeType === 1 ? this : this.parentElement;
  if (!own || !top || above(top, own) || above(own, top)) return '';
  const label = own.closest && own.closest('label');
  if (label && label.contains(top)) return '';
  if (own.labels && [...own.labels].some(one => one.contains(top))) return '';
  const cover = top.nodeType === 1 ? top : top.parentElement;
  if (!cover) return '';
  const name = cover.id ? '#' + cover.id : (cover.textContent || '').trim().slice(0, 40);
  return cover.tagName.toLowerCase() + (name ? ' ' + name : '');
}
"""
"""Describes what covers an element, given the node that a click on it hits; empty if nothing does.

Both may lie in shadow trees, closed ones and the browser's own included, and in frames.
"""

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
  if (this.tagName !== 'SELECT') return 'it is not a drop-down field';
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
"""Whether a box is ticked; null if the element is not a box."""

HTTP_STATUS = "performance.getEntriesByType('navigation')[0]?.responseStatus ?? 0"
"""HTTP status of the current document; 0 if it was not served over HTTP."""

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
