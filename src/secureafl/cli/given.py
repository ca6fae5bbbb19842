"""Settings as they are given on the command line."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import Any

from secureafl.core.errors import ConfigError
from secureafl.toml import parse_value


def settings_given(
    plain: dict[str, Any], data_dir: str | None, set_: list[str] | None
) -> dict[str, Any]:
    """The options of the command line as dotted settings."""
    changes = {k: str(v) if isinstance(v, StrEnum) else v for k, v in plain.items()}
    changes = {key: value for key, value in changes.items() if value is not None}
    if data_dir is not None:
        changes["task.data_dir"] = data_dir
    for item in set_ or []:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {item}: give KEY=VALUE, such as defense.alpha=0.7")
        changes[key.strip()] = parse_value(text)
    return changes


def words_of(text: str | None, option: str) -> list[str]:
    """The words of a list with commas between; none where the option is not given."""
    words = [] if text is None else [word.strip() for word in text.split(",")]
    if "" in words:
        raise ConfigError(f"{option} {text!r}: a name is empty; give names with commas between")
    if len(set(words)) < len(words):
        raise ConfigError(f"{option} {text!r}: give each name once")
    return words


def remedy_for(option: str) -> str:
    """The remedy for an option that is none, if a setting is called so; empty for any other."""
    from secureafl.experiment import Evaluation, Experiment, Training

    name = option.lstrip("-").replace("-", "_")
    for table, cls in (("", Experiment), ("training.", Training), ("evaluation.", Evaluation)):
        if name in {field.name for field in dataclasses.fields(cls)}:
            return f"; use --set {table}{name}=VALUE"
    return ""
