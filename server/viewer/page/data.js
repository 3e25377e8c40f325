// Where the page's data comes from: the server that sent it, or the file that it is part of.

const written = document.getElementById("embedded");
export const embedded = written ? JSON.parse(written.textContent) : null;

let token = sessionStorageGet("trajgym.token") || "";

function sessionStorageGet(name) {
  try { return sessionStorage.getItem(name); } catch { return null; }
}

export function keepToken(value) {
  token = value;
  try { sessionStorage.setItem("trajgym.token", value); } catch { /* it is kept while the page is open */ }
}

export class Problem extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

export async function get(parts, query = {}) {
  if (embedded) return fromFile(parts, query);
  const answer = await fetch(address(parts, query), { headers: { Authorization: `Bearer ${token}` } });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Problem(answer.status, body.error || `status ${answer.status}`);
  return body;
}

function address(parts, query = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "" && one !== false) search.append(name, one === true ? "1" : one);
    }
  }
  const path = ["api", ...parts].map(encodeURIComponent).join("/");
  return search.size ? `${path}?${search}` : path;
}

// The exported file holds what a session's page asks for.
function fromFile(parts, query) {
  const kind = parts.slice(4).join("/");
  const [, run, , id] = parts;
  if (parts[0] === "derivers") return embedded.derivers;
  if (parts.length === 2) return embedded.overview;
  if (parts[2] !== "sessions" || id !== embedded.session.id) throw new Problem(404, `not in this file: ${run}`);
  if (!kind) return embedded.session;
  if (kind === "values") return embedded.values.filter(one => query.with.includes(one.name));
  if (kind.endsWith("/tokens")) return embedded.tokens[parts[5]] ?? null;
  return embedded.session.turns[parts[5]];
}

const images = new Map();

// The address of a stored image that an <img> can show.
export function image(run, hash) {
  if (embedded) {
    const found = embedded.images[hash];
    return found ? Promise.resolve(found) : Promise.reject(new Problem(404, "this file does not hold it"));
  }
  const key = `${run} ${hash}`;
  if (!images.has(key)) images.set(key, loadImage(run, hash));
  return images.get(key);
}

async function loadImage(run, hash) {
  const answer = await fetch(address(["runs", run, "blobs", hash]), { headers: { Authorization: `Bearer ${token}` } });
  if (!answer.ok) throw new Problem(answer.status, answer.status === 404 ? "its bytes are not in this run" : `status ${answer.status}`);
  return URL.createObjectURL(await answer.blob());
}
