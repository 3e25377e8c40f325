"""Questions about the invented world, each with the passages that answer it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.search.world.things import Thing, World

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ask", "write_world"]


class _Hop(NamedTuple):
    """One step: the passage of a thing, read after a query, gives an answer."""

    thing: Thing
    query: str
    """``#1`` stands for the answer of the first hop."""
    answer: str


def ask(world: World) -> list[dict[str, Any]]:
    """Return the questions, in the form of our own files."""
    asked = [*_two_hops(world), *_three_hops(world), *_four_hops(world)]
    asked += [*_older_towns(world), *_same_towns(world)]
    ids = {passage["title"]: passage["id"] for passage in world.passages}
    return [
        {
            "id": f"reach-{number:02d}",
            "question": question,
            "answers": [answer],
            "gold": [ids[title] for title in dict.fromkeys(hop.thing["name"] for hop in hops)],
            "gold_titles": list(dict.fromkeys(hop.thing["name"] for hop in hops)),
            "hops": [{"question": hop.query, "answer": hop.answer} for hop in hops],
            "hop_count": len(hops),
        }
        for number, (question, answer, hops) in enumerate(asked, 1)
    ]


_Asked = tuple[str, str, list[_Hop]]


def _chain(question: str, *hops: _Hop) -> _Asked:
    return question, hops[-1].answer, list(hops)


def _two_hops(world: World) -> list[_Asked]:
    asked = []
    for book in world.things["book"][:10]:
        author = world.find(book["author"])
        asked.append(
            _chain(
                f"In which town was the author of {book['name']} born?",
                _Hop(book, book["name"], author["name"]),
                _Hop(author, "#1", author["town"]),
            ),
        )
    for work in world.things["building"][:10]:
        architect = world.find(work["architect"])
        if architect["teacher"]:
            asked.append(
                _chain(
                    f"Who taught the architect of the {work['name']}?",
                    _Hop(work, work["name"], architect["name"]),
                    _Hop(architect, "#1 taught by", architect["teacher"]),
                ),
            )
    for ship in world.things["ship"][:10]:
        port = world.find(ship["port"])
        asked.append(
            _chain(
                f"On which island is the home port of the ship {ship['name']}?",
                _Hop(ship, f"{ship['name']} ship home port", port["name"]),
                _Hop(port, "#1 town island", port["island"]),
            ),
        )
    return asked


def _three_hops(world: World) -> list[_Asked]:
    asked = []
    for feast in world.things["feast"][:8]:
        town = world.find(feast["town"])
        founder = world.find(town["founder"])
        asked.append(
            _chain(
                f"In which year was the founder of the town that holds the {feast['name']} born?",
                _Hop(feast, feast["name"], town["name"]),
                _Hop(town, "#1 town founded by", founder["name"]),
                _Hop(founder, "#2 born in the year", str(founder["born"])),
            ),
        )
    for guild in world.things["guild"][:8]:
        town = world.find(guild["town"])
        island = world.find(town["island"])
        asked.append(
            _chain(
                f"What is the main export of the island where the {guild['name']} has its seat?",
                _Hop(guild, guild["name"], town["name"]),
                _Hop(town, "#1 town island", island["name"]),
                _Hop(island, "#2 main export", island["export"]),
            ),
        )
    return asked


def _four_hops(world: World) -> list[_Asked]:
    asked = []
    for beast in world.things["beast"][:10]:
        finder = world.find(beast["finder"])
        if not finder["teacher"]:
            continue
        teacher = world.find(finder["teacher"])
        town = world.find(teacher["town"])
        asked.append(
            _chain(
                "On which island was the teacher of the naturalist who first described the "
                f"{beast['name']} born?",
                _Hop(beast, beast["name"], finder["name"]),
                _Hop(finder, "#1 taught by", teacher["name"]),
                _Hop(teacher, "#2 born in the town", town["name"]),
                _Hop(town, "#3 town island", town["island"]),
            ),
        )
    return asked


def _older_towns(world: World) -> list[_Asked]:
    towns = world.things["town"]
    asked = []
    for first, second in zip(towns[:16:2], towns[25:41:2], strict=True):
        if first["year"] != second["year"]:
            older = min(first, second, key=lambda town: int(town["year"]))
            hops = [_Hop(town, town["name"], str(town["year"])) for town in (first, second)]
            question = f"Which town was founded earlier, {first['name']} or {second['name']}?"
            asked.append((question, older["name"], hops))
    return asked


def _same_towns(world: World) -> list[_Asked]:
    books = world.things["book"]
    asked = []
    for index, (first, second) in enumerate(zip(books[10:26:2], books[11:26:2], strict=True)):
        one, two = world.find(first["author"]), world.find(second["author"])
        if index % 2:  # so that both answers occur
            second, two = _of_same_town(world, first, one)
        hops = [
            _Hop(first, first["name"], one["name"]),
            _Hop(second, second["name"], two["name"]),
            _Hop(one, "#1", one["town"]),
            _Hop(two, "#2", two["town"]),
        ]
        question = (
            f"Were the authors of {first['name']} and {second['name']} born in the same town?"
        )
        asked.append((question, "yes" if one["town"] == two["town"] else "no", hops))
    return asked


def _of_same_town(world: World, book: Thing, author: Thing) -> tuple[Thing, Thing]:
    for other in world.things["book"]:
        writer = world.find(other["author"])
        if other is not book and writer["town"] == author["town"]:
            return other, writer
    raise LookupError(f"no other book is by somebody from {author['town']}")


def write_world(folder: Path) -> None:
    """Write passages and questions as JSON lines."""
    world = World()
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("passages", world.passages), ("questions", ask(world))):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text)
