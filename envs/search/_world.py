"""Makes the corpus that ships with trajgym: an invented archipelago, and questions about it.

``python -m trajgym.envs.search._world FOLDER`` writes ``passages.jsonl`` and ``questions.jsonl``,
the same bytes every time. Every name is made up, so that no model knows an answer by heart.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["World", "write_world"]

_HEADS = "Bel Cor Dra Ell Fen Gar Hol Ith Jor Kel Lum Mor Nev Orl Pel Quar Ros Syl Tam Uth Ver Wyn Yar Zel".split()
_MIDDLES = "a e i o u ae io an en ith or und ol am ev".split()
_TAILS = "dur len mar nis por quin rath sey thane vik wen xos lith bren dal".split()
_FAMILIES = "berrick dastrel faldow grenwit harvane jostrim kesterby lodrake mundrel norbight ostwen pallivar rendish sorrowell tumbrak vantley wexholm yandrop".split()

_EXPORTS = ("smoked eel", "blue glass", "tide salt", "amber resin", "windsilk", "black pears",
            "cedar oil", "bell bronze", "peat whisky", "sponge", "saffron moss", "chalk")  # fmt: skip
_CRAFTS = ("rope making", "clock making", "weaving", "glass blowing", "boat building", "map drawing",
           "dye work", "stone cutting", "brewing", "bell founding", "paper making", "lens grinding")  # fmt: skip
_CALLINGS = ("novelist", "architect", "shipwright", "naturalist", "composer", "astronomer",
             "cartographer", "physician")  # fmt: skip
_SUBJECTS = ("a lighthouse keeper who forgets her name", "the winter of the two comets",
             "a quarrel between three ferrymen", "the last voyage of a salt trader",
             "a village that moves every spring", "the education of a bell founder's daughter",
             "an eel that could foretell storms", "a map with one island too many")  # fmt: skip
_DISHES = ("eel pie", "barley pudding", "pickled pears", "salt cakes", "moss soup", "honeyed crab",
           "smoked plums", "lantern bread")  # fmt: skip
_MONTHS = ("Frostwane", "Thawmoon", "Seedfall", "Greentide", "Highsun", "Reaping", "Mistmonth",
           "Longdark")  # fmt: skip
_EMBLEMS = ("a silver heron", "two crossed oars", "a broken wheel", "a lantern in a hand",
            "an open eye", "a knotted rope", "three stars", "a sleeping fox")  # fmt: skip
_BEASTS = ("crab", "heron", "moth", "seal", "lizard", "orchid", "fern", "hare")
_PLACES = ("on the mouth of the river", "under the cliffs of", "on the long bay of", "in the marshes of")


@dataclass(slots=True)
class World:
    """Things with their facts, passages about them, and questions.

    Args:
        seed: another seed gives another world.
    """

    seed: int = 20
    passages: list[dict[str, str]] = field(default_factory=list)
    questions: list[dict[str, Any]] = field(default_factory=list)
    things: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
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
        self._ask()

    # Things -------------------------------------------------------------------------------

    def _islands(self) -> None:
        for number in range(12):
            name = self._name()
            self._add("island", name=name, export=_EXPORTS[number], area=self._number(40, 900))

    def _people(self) -> None:
        for number in range(72):
            family = _FAMILIES[number % len(_FAMILIES)].title()
            name = f"{self._name()} {family}"
            calling = _CALLINGS[number % len(_CALLINGS)]
            self._add("person", name=name, calling=calling, born=self._number(612, 780))

    def _towns(self) -> None:
        for number in range(48):
            island = self.things["island"][number % 12]
            craft = self._pick(_CRAFTS)
            founder = self.things["person"][number]
            year = founder["born"] + self._number(24, 60)
            town = self._add("town", name=self._name(), island=island["name"], craft=craft,
                             founder=founder["name"], year=year, people=self._number(4, 90) * 100)  # fmt: skip
            place = self._pick(_PLACES)
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
            title = f"The {self._name()} {('Chronicle', 'Letters', 'Ballad', 'Testament')[number % 4]}"
            book = self._add("book", name=title, author=author["name"], year=author["born"] + self._number(22, 60))
            self._tell(book, f"{title} is a novel by {author['name']}, published in the year "
                             f"{book['year']}. It tells of {self._pick(_SUBJECTS)}.")  # fmt: skip
        for number in range(32):
            architect, town = self._of("architect", number), self._pick(self.things["town"])
            kind = ("Bridge", "Tower", "Lighthouse", "Library")[number % 4]
            work = self._add("building", name=f"{self._name()} {kind}", architect=architect["name"],
                             town=town["name"], year=architect["born"] + self._number(28, 60))  # fmt: skip
            self._tell(work, f"The {work['name']} stands in {town['name']}. It was designed by "
                             f"{architect['name']} and finished in the year {work['year']}.")  # fmt: skip
        for number in range(32):
            wright, port = self._of("shipwright", number), self._pick(self.things["town"])
            ship = self._add("ship", name=f"Lady {self._name()}", wright=wright["name"],
                             port=port["name"], year=wright["born"] + self._number(25, 60))  # fmt: skip
            self._tell(ship, f"The {ship['name']} was a three-masted ship built by {wright['name']} "
                             f"and launched in the year {ship['year']}. Her home port was "
                             f"{port['name']}.")  # fmt: skip

    def _customs(self) -> None:
        for number in range(24):
            town = self.things["town"][number * 2]
            feast = self._add("feast", name=f"Feast of {self._name()}", town=town["name"],
                              month=self._pick(_MONTHS), dish=self._pick(_DISHES))  # fmt: skip
            self._tell(feast, f"The {feast['name']} is held every year in the month of "
                              f"{feast['month']} in {town['name']}. Its guests eat "
                              f"{feast['dish']}.")  # fmt: skip
        for number in range(24):
            town = self.things["town"][number * 2 + 1]
            guild = self._add("guild", name=f"{self._name()} Guild", town=town["name"],
                              emblem=self._pick(_EMBLEMS))  # fmt: skip
            self._tell(guild, f"The {guild['name']} has its seat in {town['name']}. Its emblem is "
                              f"{guild['emblem']}, and its members practise {town['craft']}.")  # fmt: skip
        for number in range(24):
            finder, island = self._of("naturalist", number), self._pick(self.things["island"])
            beast = self._add("beast", name=f"{self._name()} {_BEASTS[number % 8]}",
                              finder=finder["name"], island=island["name"])  # fmt: skip
            self._tell(beast, f"The {beast['name']} lives only on the island of {island['name']}. "
                              f"It was first described by {finder['name']}.")  # fmt: skip

    # Questions ----------------------------------------------------------------------------

    def _ask(self) -> None:
        for book in self.things["book"][:10]:
            author = self._find(book["author"])
            self._question(f"In which town was the author of {book['name']} born?",
                           author["town"], [book, author],
                           [(book["name"], author["name"]), ("#1", author["town"])])  # fmt: skip
        for work in self.things["building"][:10]:
            architect = self._find(work["architect"])
            if architect["teacher"]:
                self._question(f"Who taught the architect of the {work['name']}?",
                               architect["teacher"], [work, architect],
                               [(work["name"], architect["name"]), ("#1 taught by", architect["teacher"])])  # fmt: skip
        for ship in self.things["ship"][:10]:
            port = self._find(ship["port"])
            self._question(f"On which island is the home port of the ship {ship['name']}?",
                           port["island"], [ship, port],
                           [(f"{ship['name']} ship home port", port["name"]), ("#1 town island", port["island"])])  # fmt: skip
        for feast in self.things["feast"][:8]:
            town = self._find(feast["town"])
            founder = self._find(town["founder"])
            self._question(f"In which year was the founder of the town that holds the {feast['name']} born?",
                           str(founder["born"]), [feast, town, founder],
                           [(feast["name"], town["name"]), ("#1 town founded by", founder["name"]),
                            ("#2 born in the year", str(founder["born"]))])  # fmt: skip
        for guild in self.things["guild"][:8]:
            town = self._find(guild["town"])
            island = self._find(town["island"])
            self._question(f"What is the main export of the island where the {guild['name']} has its seat?",
                           island["export"], [guild, town, island],
                           [(guild["name"], town["name"]), ("#1 town island", island["name"]),
                            ("#2 main export", island["export"])])  # fmt: skip
        self._ask_chains()
        self._ask_pairs()

    def _ask_chains(self) -> None:
        for beast in self.things["beast"][:10]:
            finder = self._find(beast["finder"])
            if finder["teacher"]:
                teacher = self._find(finder["teacher"])
                town = self._find(teacher["town"])
                self._question(f"On which island was the teacher of the naturalist who first described the {beast['name']} born?",
                               town["island"], [beast, finder, teacher, town],
                               [(beast["name"], finder["name"]), ("#1 taught by", teacher["name"]),
                                ("#2 born in the town", town["name"]), ("#3 town island", town["island"])])  # fmt: skip

    def _ask_pairs(self) -> None:
        towns = self.things["town"]
        for first, second in zip(towns[:16:2], towns[25:41:2], strict=True):
            if first["year"] != second["year"]:
                older = min(first, second, key=lambda town: int(town["year"]))
                self._question(f"Which town was founded earlier, {first['name']} or {second['name']}?",
                               older["name"], [first, second],
                               [(first["name"], str(first["year"])), (second["name"], str(second["year"]))])  # fmt: skip
        books = self.things["book"]
        for index, (first, second) in enumerate(zip(books[10:26:2], books[11:26:2], strict=False)):
            one, two = self._find(first["author"]), self._find(second["author"])
            if index % 2:  # so that both answers occur
                second, two = self._same_town(first, one) or (second, two)
            same = "yes" if one["town"] == two["town"] else "no"
            gold = list({t["name"]: t for t in (first, second, one, two)}.values())
            self._question(f"Were the authors of {first['name']} and {second['name']} born in the same town?",
                           same, gold,
                           [(first["name"], one["name"]), (second["name"], two["name"]),
                            ("#1", one["town"]), ("#2", two["town"])])  # fmt: skip

    def _same_town(self, book: dict[str, Any], author: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        for other in self.things["book"]:
            writer = self._find(other["author"])
            if other is not book and writer["town"] == author["town"]:
                return other, writer
        return None

    def _question(
        self,
        question: str,
        answer: str,
        gold: list[dict[str, Any]],
        hops: list[tuple[str, str]],
    ) -> None:
        titles = [thing["name"] for thing in gold]
        ids = {passage["title"]: passage["id"] for passage in self.passages}
        self.questions.append(
            {
                "id": f"reach-{len(self.questions) + 1:02d}",
                "question": question,
                "answers": [answer],
                "gold": [ids[title] for title in titles],
                "gold_titles": titles,
                "hops": [{"question": asked, "answer": found} for asked, found in hops],
                "hop_count": len(gold),
            },
        )

    # Parts --------------------------------------------------------------------------------

    def _add(self, kind: str, **facts: Any) -> dict[str, Any]:
        self.things.setdefault(kind, []).append(facts)
        return facts

    def _tell(self, thing: dict[str, Any], text: str) -> None:
        self.passages.append({"id": "", "title": thing["name"], "text": text})

    def _find(self, name: str) -> dict[str, Any]:
        return next(t for kind in self.things.values() for t in kind if t["name"] == name)

    def _of(self, calling: str, number: int) -> dict[str, Any]:
        people = [p for p in self.things["person"] if p["calling"] == calling]
        return people[number % len(people)]

    def _praise(self, person: dict[str, Any]) -> str:
        pupils = {"novelist": "wrote by candle light only", "architect": "built for wind and spray",
                  "shipwright": "never signed a hull", "naturalist": "kept a garden of weeds",
                  "composer": "wrote for bells and low voices", "astronomer": "counted comets",
                  "cartographer": "measured every coast twice", "physician": "took fish as a fee"}  # fmt: skip
        return f"As a {person['calling']}, {person['name'].split()[0]} {pupils[person['calling']]}."

    def _name(self) -> str:
        while True:
            name = self._pick(_HEADS) + self._pick(_MIDDLES) + self._pick(_TAILS)
            if name not in self._names:
                self._names.add(name)
                return name

    def _pick(self, options: Any) -> Any:
        # choice() of another Python may draw differently; random() never does.
        return options[int(self._chance.random() * len(options))]

    def _number(self, least: int, most: int) -> int:
        return least + int(self._chance.random() * (most - least + 1))


def write_world(folder: Path) -> None:
    """Write passages and questions as JSON lines."""
    world = World()
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("passages", world.passages), ("questions", world.questions)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text)


if __name__ == "__main__":
    write_world(Path(sys.argv[1]))
