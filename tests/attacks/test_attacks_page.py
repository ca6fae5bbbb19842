"""docs/attacks.md says of every attack what it is shown and what its attacker needs to know."""

import re
from pathlib import Path

from secureafl.attacks import ATTACKS

TEXT = (Path(__file__).parents[2] / "docs/attacks.md").read_text()


def rows(heading):
    """The cells of the first table below a heading."""
    table = re.search(r"\n\n(\|.*?)\n\n", TEXT[TEXT.index(f"# {heading}\n") :], re.DOTALL)[1]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_table_of_attacks_says_what_each_is_shown():
    told = {row[0].strip("`"): row[2] for row in rows("Attacks")}
    assert told == {name: kind.knows for name, kind in ATTACKS.items() if name != "none"}


def test_every_attacker_is_told_what_it_needs_to_know():
    told = [n for row in rows("What an attacker needs to know") for n in row[0].split(", ")]
    assert sorted(n.strip("`") for n in told) == sorted(ATTACKS.keys() - {"none"})
