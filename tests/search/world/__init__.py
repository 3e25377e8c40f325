"""The invented archipelago: the source of the corpus and the questions that ship with trajgym."""
