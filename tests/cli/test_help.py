"""The help of every command says what was written."""

import click
import pytest
import typer
from rich.text import Text
from typer.testing import CliRunner

from secureafl.cli.app import app


def texts(command):
    """Every text of a command and those below it that its help shows."""
    yield from filter(None, (command.help, command.epilog))
    yield from (text for p in command.params if (text := getattr(p, "help", None)))
    for below in getattr(command, "commands", {}).values():
        yield from texts(below)


def test_help_shows_brackets_instead_of_reading_them_as_markup():
    for text in texts(typer.main.get_command(app)):
        assert Text.from_markup(text).plain == text.replace("\\[", "[")


def placeholders(command, words="secureafl"):
    """What the help of every command says for the value of each option and argument."""
    for parameter in command.params:
        if not getattr(parameter, "is_flag", False):
            yield f"{words} {parameter.name}", parameter.make_metavar(click.Context(command))
    for name, below in getattr(command, "commands", {}).items():
        yield from placeholders(below, f"{words} {name}")


def test_help_says_what_a_value_is_in_words_of_people():
    types = ("TEXT", "INTEGER", "FLOAT", "PATH", "RANGE")
    found = dict(placeholders(typer.main.get_command(app)))
    assert len(found) > 80
    assert {where: word for where, word in found.items() if word.startswith(types)} == {}


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("secureafl re", {"resume", "report", "redteam", "reproduce", "results"}),
     ("secureafl run --att", {"--attack"}),
     ("secureafl sweep --engine s", {"slurm"})],
)  # fmt: skip
def test_shell_completes_commands_options_and_choices(typed, offered):
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    done = CliRunner().invoke(
        app, prog_name="secureafl", env={"_SECUREAFL_COMPLETE": "complete_bash", **words}
    )
    assert set(done.output.split()) == offered
