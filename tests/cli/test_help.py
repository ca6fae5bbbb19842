"""The help of every command says what was written."""

import typer
from rich.text import Text

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
