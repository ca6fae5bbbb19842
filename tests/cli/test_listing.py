import dataclasses

import pytest

from secureafl.arrivals import Uniform
from secureafl.attacks import ATTACKS, Gaussian, Scaling
from secureafl.cli.listed import Listed
from secureafl.cli.listing import _tables, about, list_table
from secureafl.defenses import DEFENSES, AsyncSgd, Kardam, SecureAfl, ZenoPp


def test_every_table_has_a_name_the_command_knows():
    assert set(_tables()) == {listed.value for listed in Listed}


@pytest.mark.parametrize("kind", DEFENSES)
def test_each_defence_has_a_title_and_a_citation(kind):
    found = about(DEFENSES[kind])
    assert found.title.endswith(".")
    title = found.title.replace("+", "p").replace(" ", "").lower()
    assert title.startswith(kind.replace("_", "")), found.title
    assert found.citation, "the last paragraph of the docstring: authors, title in quotes, year"
    assert found.citation not in found.idea


@pytest.mark.parametrize("kind", [kind for kind in ATTACKS if kind != "none"])
def test_each_attack_has_a_title_and_a_citation_and_tells_what_it_knows(kind):
    found = about(ATTACKS[kind])
    assert found.title.endswith(".")
    assert found.citation, "the last paragraph of the docstring: authors, title in quotes, year"
    assert found.knows
    assert found.presets["paper"] == "the settings above"


def test_backdoors_and_presets_are_told():
    assert about(Scaling).backdoor
    assert not about(Gaussian).backdoor
    assert about(Scaling).presets["stealth"] == "factor = 1.0"
    assert not about(SecureAfl).knows
    assert not about(SecureAfl).presets


@pytest.mark.parametrize("cls", [cls for table in _tables().values() for cls in table.values()])
def test_all_settings_are_told_with_their_defaults(cls):
    found = about(cls)
    assert list(found.settings) == [field.name for field in dataclasses.fields(cls)]
    assert found.title


@pytest.mark.parametrize("what", _tables())
@pytest.mark.parametrize("verbose", [True, False])
def test_every_table_is_printed_whole(capsys, what, verbose):
    list_table(what, verbose)
    printed = " ".join(capsys.readouterr().out.split())
    for kind, cls in _tables()[what].items():
        assert kind in printed
        assert all(f"{name} = " in printed for name in about(cls).settings)


def test_needs_are_told_in_words():
    assert about(Kardam).needs == ["the number of malicious clients"]
    assert about(ZenoPp).needs == ["trusted data"]
    assert about(AsyncSgd).needs == []


def test_default_plug_ins_are_told_by_name():
    assert about(SecureAfl).settings["aggregator"] == "Median"


def test_settings_within_settings_are_told_as_in_a_file():
    assert about(Uniform).settings["churn"] == "{ late = 0.0, stay = 0.0, away = 0.0 }"
