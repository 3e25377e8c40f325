// Elements and texts. Data becomes text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.setAttribute("class", value);
    else if (name === "style") for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "open") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child !== undefined && child !== null && child !== false) element.append(child);
  }
}

export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

export const put = (element, ...children) => { element.replaceChildren(); append(element, children); return element; };

const counts = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = n => (n === null || n === undefined ? "" : counts.format(n));
export const brief = n => (n === null || n === undefined ? "" : n < 10000 ? counts.format(n) : compact.format(n));
export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
export const percent = share => (share === null || Number.isNaN(share) ? "–" : `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)}%`);

export function fixed(value, digits = 3) {
  if (value === null || value === undefined) return "";
  if (Math.abs(value) < 1e-12) return "0";
  return String(Number(value.toPrecision(digits)));
}

export const signed = value => (value > 1e-12 ? `+${fixed(value)}` : fixed(value).replace("-", "−"));

export function seconds(value) {
  if (!value) return "";
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

export const moment = unix => (unix ? new Date(unix * 1000).toISOString().slice(0, 19).replace("T", " ") : "");

export function kindOf(status, passed) {
  if (passed) return "solved";
  return String(status).split(":")[0];
}

export const pill = (status, passed) =>
  h("span", { class: `pill is-${kindOf(status, passed)}` }, passed ? "solved" : status);

// A colour for a name, the same everywhere; the styles give it a lightness that fits the theme.
export function hue(name) {
  let sum = 7;
  for (const letter of String(name)) sum = (sum * 31 + letter.codePointAt(0)) % 3600;
  return sum % 360;
}

export const icon = (paths, label) =>
  s("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": label ? null : "true", role: label ? "img" : null, "aria-label": label },
    ...paths.map(d => s("path", { d })));

export const button = (label, onclick, props) => h("button", { type: "button", onclick, ...props }, label);

export function debounce(work, wait = 180) {
  let timer = 0;
  return (...given) => { clearTimeout(timer); timer = setTimeout(() => work(...given), wait); };
}
