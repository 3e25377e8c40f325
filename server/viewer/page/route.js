// Addresses of the page: #/run/NAME/session/ID?turn=3. They hold all that a view depends on.

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

// Changes what the address says without leaving the view.
export function note(parts, query) {
  history.replaceState(null, "", link(parts, query));
}
