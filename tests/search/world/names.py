"""The material of which the invented world is made."""

from __future__ import annotations

HEADS = [
    "Bel",
    "Cor",
    "Dra",
    "Ell",
    "Fen",
    "Gar",
    "Hol",
    "Ith",
    "Jor",
    "Kel",
    "Lum",
    "Mor",
    "Nev",
    "Orl",
    "Pel",
    "Quar",
    "Ros",
    "Syl",
    "Tam",
    "Uth",
    "Ver",
    "Wyn",
    "Yar",
    "Zel",
]
MIDDLES = ["a", "e", "i", "o", "u", "ae", "io", "an", "en", "ith", "or", "und", "ol", "am", "ev"]
TAILS = [
    "dur",
    "len",
    "mar",
    "nis",
    "por",
    "quin",
    "rath",
    "sey",
    "thane",
    "vik",
    "wen",
    "xos",
    "lith",
    "bren",
    "dal",
]
FAMILIES = [
    "berrick",
    "dastrel",
    "faldow",
    "grenwit",
    "harvane",
    "jostrim",
    "kesterby",
    "lodrake",
    "mundrel",
    "norbight",
    "ostwen",
    "pallivar",
    "rendish",
    "sorrowell",
    "tumbrak",
    "vantley",
    "wexholm",
    "yandrop",
]

EXPORTS = (
    "smoked eel",
    "blue glass",
    "tide salt",
    "amber resin",
    "windsilk",
    "black pears",
    "cedar oil",
    "bell bronze",
    "peat whisky",
    "sponge",
    "saffron moss",
    "chalk",
)
CRAFTS = (
    "rope making",
    "clock making",
    "weaving",
    "glass blowing",
    "boat building",
    "map drawing",
    "dye work",
    "stone cutting",
    "brewing",
    "bell founding",
    "paper making",
    "lens grinding",
)
CALLINGS = (
    "novelist",
    "architect",
    "shipwright",
    "naturalist",
    "composer",
    "astronomer",
    "cartographer",
    "physician",
)
SUBJECTS = (
    "a lighthouse keeper who forgets her name",
    "the winter of the two comets",
    "a quarrel between three ferrymen",
    "the last voyage of a salt trader",
    "a village that moves every spring",
    "the education of a bell founder's daughter",
    "an eel that could foretell storms",
    "a map with one island too many",
)
DISHES = (
    "eel pie",
    "barley pudding",
    "pickled pears",
    "salt cakes",
    "moss soup",
    "honeyed crab",
    "smoked plums",
    "lantern bread",
)
MONTHS = (
    "Frostwane",
    "Thawmoon",
    "Seedfall",
    "Greentide",
    "Highsun",
    "Reaping",
    "Mistmonth",
    "Longdark",
)
EMBLEMS = (
    "a silver heron",
    "two crossed oars",
    "a broken wheel",
    "a lantern in a hand",
    "an open eye",
    "a knotted rope",
    "three stars",
    "a sleeping fox",
)
BEASTS = ("crab", "heron", "moth", "seal", "lizard", "orchid", "fern", "hare")
PLACES = (
    "on the mouth of the river",
    "under the cliffs of",
    "on the long bay of",
    "in the marshes of",
)
FORMS = ("Chronicle", "Letters", "Ballad", "Testament")
BUILDINGS = ("Bridge", "Tower", "Lighthouse", "Library")
HABITS = {
    "novelist": "wrote by candle light only",
    "architect": "built for wind and spray",
    "shipwright": "never signed a hull",
    "naturalist": "kept a garden of weeds",
    "composer": "wrote for bells and low voices",
    "astronomer": "counted comets",
    "cartographer": "measured every coast twice",
    "physician": "took fish as a fee",
}
