"""An invented archipelago: things with facts, and a passage about each.

Every name is made up, so that no model knows an answer by heart.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.search.world import names

__all__ = ["Thing", "World"]

Thing: TypeAlias = "dict[str, Any]"


@dataclass(slots=True)
class World:
    """Things with their facts, passages about them, and questions.

    Args:
        seed: another seed gives another world.
    """

    seed: int = 20
    passages: list[dict[str, str]] = field(default_factory=list)
    things: dict[str, list[Thing]] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)
    _chance: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self._chance.seed(self.seed)
        self._islands()
        self._people()
        self._towns()
        self._finish_people()
        self._works()
        self._customs()
        for number, passage in enumerate(self.passages, 1):
            passage["id"] = f"w{number:03d}"

    # Things -------------------------------------------------------------------------------

    def _islands(self) -> None:
        for number in range(12):
            name = self._name()
            self._add("island", name=name, export=names.EXPORTS[number], area=self._number(40, 900))

    def _people(self) -> None:
        for number in range(72):
            family = names.FAMILIES[number % len(names.FAMILIES)].title()
            name = f"{self._name()} {family}"
            calling = names.CALLINGS[number % len(names.CALLINGS)]
            self._add("person", name=name, calling=calling, born=self._number(612, 780))

    def _towns(self) -> None:
        for number in range(48):
            island = self.things["island"][number % 12]
            craft = self._pick(names.CRAFTS)
            founder = self.things["person"][number]
            year = founder["born"] + self._number(24, 60)
            town = self._add(
                "town",
                name=self._name(),
                island=island["name"],
                craft=craft,
                founder=founder["name"],
                year=year,
                people=self._number(4, 90) * 100,
            )
            place = self._pick(names.PLACES)
            self._tell(
                town,
                f"{town['name']} is a town {place} {self._name()}, on the island of "
                f"{island['name']}. It was founded in the year {year} by {founder['name']} and has "
                f"about {town['people']} inhabitants. It is known for its {craft}.",
            )
        for island in self.things["island"]:
            towns = [t["name"] for t in self.things["town"] if t["island"] == island["name"]]
            island["capital"] = self._pick(towns)
            self._tell(
                island,
                f"{island['name']} is an island of the Sundered Reach, {island['area']} square "
                f"miles in size. Its capital is {island['capital']}; other towns are "
                f"{', '.join(t for t in towns if t != island['capital'])}. The main export of "
                f"{island['name']} is {island['export']}.",
            )

    def _finish_people(self) -> None:
        people = self.things["person"]
        for person in people:
            older = [p for p in people if 15 <= person["born"] - p["born"] <= 70]
            person["teacher"] = self._pick(older)["name"] if older else ""
            person["town"] = self._pick(self.things["town"])["name"]
            taught = f" {person['name']} was taught by {person['teacher']}." if older else ""
            self._tell(
                person,
                f"{person['name']} was a {person['calling']}, born in the year {person['born']} in "
                f"the town of {person['town']}.{taught} {self._praise(person)}",
            )

    def _works(self) -> None:
        for number in range(40):
            author = self._of("novelist", number)
            title = f"The {self._name()} {names.FORMS[number % 4]}"
            book = self._add(
                "book",
                name=title,
                author=author["name"],
                year=author["born"] + self._number(22, 60),
            )
            self._tell(
                book,
                f"{title} is a novel by {author['name']}, published in the year "
                f"{book['year']}. It tells of {self._pick(names.SUBJECTS)}.",
            )
        for number in range(32):
            architect, town = self._of("architect", number), self._pick(self.things["town"])
            kind = names.BUILDINGS[number % 4]
            work = self._add(
                "building",
                name=f"{self._name()} {kind}",
                architect=architect["name"],
                town=town["name"],
                year=architect["born"] + self._number(28, 60),
            )
            self._tell(
                work,
                f"The {work['name']} stands in {town['name']}. It was designed by "
                f"{architect['name']} and finished in the year {work['year']}.",
            )
        for number in range(32):
            wright, port = self._of("shipwright", number), self._pick(self.things["town"])
            ship = self._add(
                "ship",
                name=f"Lady {self._name()}",
                wright=wright["name"],
                port=port["name"],
                year=wright["born"] + self._number(25, 60),
            )
            self._tell(
                ship,
                f"The {ship['name']} was a three-masted ship built by {wright['name']} "
                f"and launched in the year {ship['year']}. Her home port was "
                f"{port['name']}.",
            )

    def _customs(self) -> None:
        for number in range(24):
            town = self.things["town"][number * 2]
            feast = self._add(
                "feast",
                name=f"Feast of {self._name()}",
                town=town["name"],
                month=self._pick(names.MONTHS),
                dish=self._pick(names.DISHES),
            )
            self._tell(
                feast,
                f"The {feast['name']} is held every year in the month of "
                f"{feast['month']} in {town['name']}. Its guests eat "
                f"{feast['dish']}.",
            )
        for number in range(24):
            town = self.things["town"][number * 2 + 1]
            guild = self._add(
                "guild",
                name=f"{self._name()} Guild",
                town=town["name"],
                emblem=self._pick(names.EMBLEMS),
            )
            self._tell(
                guild,
                f"The {guild['name']} has its seat in {town['name']}. Its emblem is "
                f"{guild['emblem']}, and its members practise {town['craft']}.",
            )
        for number in range(24):
            finder, island = self._of("naturalist", number), self._pick(self.things["island"])
            beast = self._add(
                "beast",
                name=f"{self._name()} {names.BEASTS[number % 8]}",
                finder=finder["name"],
                island=island["name"],
            )
            self._tell(
                beast,
                f"The {beast['name']} lives only on the island of {island['name']}. "
                f"It was first described by {finder['name']}.",
            )

    def find(self, name: str) -> Thing:
        """Return the thing of a name."""
        return next(t for kind in self.things.values() for t in kind if t["name"] == name)

    # Parts --------------------------------------------------------------------------------

    def _add(self, kind: str, **facts: Any) -> Thing:
        self.things.setdefault(kind, []).append(facts)
        return facts

    def _tell(self, thing: Thing, text: str) -> None:
        self.passages.append({"id": "", "title": thing["name"], "text": text})

    def _of(self, calling: str, number: int) -> Thing:
        people = [p for p in self.things["person"] if p["calling"] == calling]
        return people[number % len(people)]

    def _praise(self, person: Thing) -> str:
        calling = person["calling"]
        return f"As a {calling}, {person['name'].split()[0]} {names.HABITS[calling]}."

    def _name(self) -> str:
        while True:
            name: str = (
                self._pick(names.HEADS) + self._pick(names.MIDDLES) + self._pick(names.TAILS)
            )
            if name not in self._names:
                self._names.add(name)
                return name

    def _pick(self, options: Any) -> Any:
        # choice() of another Python may draw differently; random() never does.
        return options[int(self._chance.random() * len(options))]

    def _number(self, least: int, most: int) -> int:
        return least + int(self._chance.random() * (most - least + 1))
