// Addresses of the page: #/run/NAME/session/ID?turn=3. They hold all that a view depends on.

import { embedded } from "./data.js";

export function readRoute() {
  const [path, search = ""] = location.hash.replace(/^#/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(part => { try { return decodeURIComponent(part); } catch { return part; } });
  return { parts, query: new URLSearchParams(search) };
}

export function link(parts, query = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of query instanceof URLSearchParams ? query : Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "" && one !== false) search.append(name, one);
    }
  }
  return `#/${parts.map(encodeURIComponent).join("/")}${search.size ? `?${search}` : ""}`;
}

export const go = (parts, query) => { location.hash = link(parts, query); };

// Changes what the address says of a view, while the view is what it shows. A view that is being left
// may still hear of a scroll or a key: it must not take the address back.
export function note(parts, query) {
  if (!embedded && readRoute().parts.join("/") !== parts.join("/")) return;
  const found = link(parts, query);
  if (found !== location.hash) history.replaceState(null, "", found);
}
