"""Elements of pages that are too large to be listed completely: only those in the viewport."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from ._tree import Line, line_of, value_of

if TYPE_CHECKING:
    from ._tab import Tab

__all__ = ["MOST_ELEMENTS", "lines_in_view"]

MOST_ELEMENTS = 2500
"""Maximum number of elements of a page that is listed completely; larger ones take seconds."""
_MOST_IN_VIEW = 400

_WALK = """
(most => {
  const own = 'a[href],button,input,select,textarea,summary,option,label,[role],[tabindex],' +
    '[onclick],[contenteditable],h1,h2,h3,h4,h5,h6,img,td,th,li,iframe';
  const skip = new Set(['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'HEAD']);
  const meta = [], nodes = [];
  const stack = [[document.documentElement, -1, false]];
  while (stack.length && nodes.length < most) {
    const [node, above, seen] = stack.pop();
    let parent = above, inView = seen;
    if (node.nodeType === 3) {
      if (seen && node.data.trim()) { meta.push([parent, null]); nodes.push(node); }
      continue;
    }
    if (node.nodeType !== 1 || skip.has(node.tagName)) continue;
    const r = node.getBoundingClientRect();
    inView = r.width >= 1 && r.height >= 1 && r.bottom > 0 && r.right > 0 &&
      r.top < innerHeight && r.left < innerWidth;
    if (inView) {
      const hand = getComputedStyle(node).cursor === 'pointer' &&
        !(node.parentElement && getComputedStyle(node.parentElement).cursor === 'pointer');
      if (hand || node.matches(own)) {
        meta.push([parent, [r.left, r.top, r.width, r.height], hand]);
        parent = nodes.push(node) - 1;
      }
    }
    const children = [...(node.shadowRoot || node).childNodes];
    for (let i = children.length - 1; i >= 0; i--) stack.push([children[i], parent, inView]);
  }
  return [JSON.stringify(meta), ...nodes];
})
"""


async def lines_in_view(tab: Tab) -> tuple[list[Line], dict[int, list[float]]]:
    """Return lines and boxes of the main document's elements in the viewport, without frames."""
    session = tab.session
    world = await session.send(
        "Page.createIsolatedWorld", {"frameId": tab.loads.main, "worldName": "trajgym"}
    )
    answer = await session.send(
        "Runtime.evaluate",
        {
            "expression": f"{_WALK}({_MOST_IN_VIEW})",
            "contextId": world["executionContextId"],
        },
    )
    properties = await session.send(
        "Runtime.getProperties", {"objectId": answer["result"]["objectId"], "ownProperties": True}
    )
    items = [p["value"] for p in properties["result"] if p["name"].isdigit()]
    meta = json.loads(items[0]["value"])
    asked = [
        session.send(
            "Accessibility.getPartialAXTree",
            {"objectId": item["objectId"], "fetchRelatives": False},
        )
        for item in items[1:]
    ]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    return _lines(meta, [a if isinstance(a, dict) else {"nodes": []} for a in answers])


def _lines(
    meta: list[list[Any]], answers: list[dict[str, Any]]
) -> tuple[list[Line], dict[int, list[float]]]:
    lines: list[Line] = []
    boxes: dict[int, list[float]] = {}
    places: list[tuple[int, tuple[str, ...]]] = []
    """For each node: the depth of its children, and the texts of its parents."""
    for (parent, box, *hand), answer in zip(meta, answers, strict=True):
        depth, above = places[parent] if parent >= 0 else (1, ())
        node = answer["nodes"][0] if answer["nodes"] else None
        line = line_of(node, depth, above, clickable=bool(hand and hand[0])) if node else None
        if node is None or line is None:
            places.append((depth, above))
            continue
        lines.append(line)
        places.append((depth + 1, (line.name, value_of(node))))
        if box is not None:
            boxes[line.node] = [round(side, 1) for side in box]
    return lines, boxes
